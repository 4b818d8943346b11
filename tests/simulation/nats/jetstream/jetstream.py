"""JetStream of one server: its streams, and what is addressed to it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.nats.jetstream.api import Api
from tests.simulation.nats.jetstream.config import NS, Config
from tests.simulation.nats.jetstream.consumer import Consumer
from tests.simulation.nats.jetstream.delivery import PullDelivery, PushDelivery
from tests.simulation.nats.jetstream.errors import ApiError
from tests.simulation.nats.jetstream.stream import Stream
from tests.simulation.nats.session import Headers
from tests.simulation.nats.subjects import Listeners

if TYPE_CHECKING:
    from tests.simulation.nats.server import MemoryServer


@dataclass(eq=False, slots=True)
class _Captured:
    """One subject of one stream."""

    stream: Stream
    subject: str
    queue: str = ""


class JetStream:
    """``now_s``: unix time; what is written is synced ``sync_interval_s`` later, or at once for 0."""

    def __init__(self, server: MemoryServer, now_s: Callable[[], float], rng: random.Random, sync_interval_s: float):
        self.streams: dict[str, Stream] = {}
        self.rng = rng
        self.sync_interval_s = sync_interval_s
        self.disk_is_full = False  # nothing more is stored
        self.pushing: dict[str, list[Consumer]] = {}  # by the subject that they deliver to
        self._server = server
        self._now_s = now_s
        self._captured: Listeners[_Captured] = Listeners()
        self._api = Api(self)

    def now_ns(self) -> int:
        return int(self._now_s() * NS)

    def new_name(self) -> str:
        """Of a consumer that has none."""
        return self._server.nuid.next().decode()[-8:]

    # messages

    def take(self, subject: str, reply: str, data: bytes, headers: Headers | None) -> bool:
        """What a client sends; whether it is for JetStream."""
        if subject.startswith("$JS."):
            return self._take_own(subject, reply, data)
        captured = self._captured.of(subject)[0]
        if not captured:
            return False
        stream = captured[0].stream
        try:
            sequence, is_known = stream.publish(subject, headers, data)
        except ApiError as error:
            answer = json.dumps({"error": error.forgotten().as_dict(), "stream": stream.name, "seq": 0})
        else:
            duplicate = ',"duplicate": true' if is_known else ""
            answer = f'{{"stream":"{stream.name}","seq":{sequence}{duplicate}}}'
        if reply:
            self.deliver(reply, reply, "", answer.encode(), None)
        return True

    def _take_own(self, subject: str, reply: str, data: bytes) -> bool:
        tokens = subject.split(".")
        if tokens[1] == "API":
            if tokens[2:5] == ["CONSUMER", "MSG", "NEXT"]:
                return self._pull(tokens[5:], reply, data)
            return self._api.answer(tokens[2:], reply, data)
        if len(tokens) < 4 or (stream := self.streams.get(tokens[2])) is None:
            return False
        consumer = stream.consumers.get(tokens[3])
        if consumer is None:
            return False
        if tokens[1] == "ACK":
            consumer.on_ack(tokens, reply, data)
        elif tokens[1] == "FC" and isinstance(consumer.delivery, PushDelivery):
            consumer.delivery.confirm(subject)
        return True

    def _pull(self, tokens: list[str], reply: str, data: bytes) -> bool:
        stream = self.streams.get(tokens[0])
        consumer = stream.consumers.get(tokens[1]) if stream is not None and len(tokens) == 2 else None
        if consumer is None or not isinstance(consumer.delivery, PullDelivery):
            return False
        if reply:
            consumer.delivery.request(reply, data)
        return True

    def deliver(self, inbox: str, subject: str, reply: str, data: bytes, headers: Headers | None) -> None:
        """To who listens at the inbox."""
        self._server.send_to(inbox, subject, reply, data, headers)

    def listens(self, subject: str) -> bool:
        return subject in self._server.listeners

    def on_interest(self, subject: str) -> None:
        """Somebody subscribed."""
        for consumer in self.pushing.get(subject, ()):
            consumer.wake()

    # streams

    def add(self, config: Config) -> Stream:
        stream = self.streams[config["name"]] = Stream(self, config)
        self._capture()
        return stream

    def update(self, stream: Stream, config: Config) -> None:
        stream.update(config)
        self._capture()

    def delete(self, stream: Stream) -> None:
        del self.streams[stream.name]
        stream.delete_all()
        self._capture()

    def _capture(self) -> None:
        self._captured = Listeners()
        for stream in self.streams.values():
            for subject in stream.config["subjects"]:
                self._captured.add(_Captured(stream, subject))

    # the server's life

    def start(self) -> None:
        for stream in self.streams.values():
            stream.start()

    def stop(self) -> None:
        for stream in self.streams.values():
            stream.stop()

    def sync(self) -> None:
        for stream in self.streams.values():
            stream.sync()

    @property
    def not_synced_since_s(self) -> float | None:
        """Since when there is something that a power cut may take, the event loop's time; None where there is not."""
        since = [each.not_synced_since_s for each in self.streams.values()]
        return min((since_s for since_s in since if since_s is not None), default=None)

    def cut_power(self) -> None:
        for stream in self.streams.values():
            stream.cut_power()
