"""To whom a consumer delivers: those who pull, or one subject that it pushes to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.nats.jetstream.config import NS
from tests.simulation.nats.jetstream.waiting import (
    PENDING_BYTES,
    PENDING_MESSAGES,
    PullRequest,
    WaitingRequests,
    status,
)
from tests.simulation.nats.session import Headers

if TYPE_CHECKING:
    from tests.simulation.nats.jetstream.consumer import Consumer

WINDOW_BYTES = 32 * 1024**2  # of messages under flow control that are not confirmed; it begins at a sixteenth


def _heartbeat(consumer: Consumer) -> Headers:
    consumer_sequence, stream_sequence = str(consumer.consumer_sequence - 1), str(consumer.next_sequence - 1)
    return status(
        100, "Idle Heartbeat", **{"Nats-Last-Consumer": consumer_sequence, "Nats-Last-Stream": stream_sequence}
    )


class PullDelivery:
    """One message at a time for each request, in turn."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._loop = asyncio.get_running_loop()
        listens = consumer.stream.jetstream.listens
        most = consumer.config["max_waiting"]
        self.waiting = WaitingRequests(most, consumer.tell, listens, lambda: _heartbeat(consumer))
        self._taken: PullRequest | None = None

    @property
    def is_ready(self) -> bool:
        return bool(self.waiting)

    def request(self, reply: str, data: bytes) -> None:
        consumer, now_s = self._consumer, self._loop.time()
        consumer.touch()
        try:
            request = PullRequest.parse(data, reply, now_s)
        except ValueError as error:
            consumer.tell(reply, status(400, f"Bad Request - {error}"))
            return
        if self.waiting.is_full:
            self.waiting.tidy(False, now_s)
            if self.waiting.is_full:
                consumer.tell(reply, status(409, "Exceeded MaxWaiting"))
                return
        if request.is_one_shot:
            num_pending = max(0, consumer.num_pending) + len(consumer.pending.due)
            if not num_pending and request.expires_s is None:
                consumer.tell(reply, status(404, "No Messages"))
                return
            if num_pending:
                self.waiting.tidy(False, now_s)
                if num_pending < self.waiting.num_wanted:
                    consumer.tell(reply, status(408, "Requests Pending"))
                    return
        self.waiting.add(request)
        consumer.wake()

    def take(self, num_bytes: int) -> str | None:
        """The inbox that has the next message, of this size."""
        self._taken = self.waiting.take(num_bytes, self._loop.time())
        return None if self._taken is None else self._taken.reply

    def sent(self, inbox: str) -> None:
        request = self._taken
        if request is not None and request.num_left <= 0 and request.bytes_left:
            left = {PENDING_MESSAGES: str(request.num_left), PENDING_BYTES: str(request.bytes_left)}
            self._consumer.tell(inbox, status(409, "Batch Completed", **left))

    def num_waiting(self) -> int:
        return len(self.waiting)

    def rest(self, is_at_end: bool) -> float | None:
        """There is nothing to deliver now, or nobody. Returns when to look again."""
        return self.waiting.tidy(is_at_end, self._loop.time())

    def is_in_use(self) -> bool:
        self.waiting.tidy(False, self._loop.time())
        return bool(self.waiting)

    def end(self, why: str) -> None:
        self.waiting.tidy(False, self._loop.time())
        for inbox in self.waiting.inboxes():
            self._consumer.tell(inbox, status(409, why))
        self.close()

    def close(self) -> None:
        self.waiting.clear()


class PushDelivery:
    """As fast as its subject's listener confirms, where it is under flow control."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._loop = asyncio.get_running_loop()
        self._subject: str = consumer.config["deliver_subject"]
        self._beat_s = consumer.config.get("idle_heartbeat", 0) / NS
        self._beats_s: float | None = self._loop.time() + self._beat_s if self._beat_s else None
        self._has_flow = bool(consumer.config.get("flow_control"))
        self._window = WINDOW_BYTES // 16
        self._unconfirmed = 0
        self._asked: tuple[str, int] | None = None  # (flow control's subject, bytes that its answer confirms)
        self._num_asked = 0
        consumer.stream.jetstream.pushing.setdefault(self._subject, []).append(consumer)
        consumer.wake()

    @property
    def is_ready(self) -> bool:
        is_open = not self._has_flow or self._unconfirmed <= self._window
        return is_open and self._consumer.stream.jetstream.listens(self._subject)

    def take(self, num_bytes: int) -> str | None:
        self._unconfirmed += num_bytes if self._has_flow else 0
        return self._subject

    def sent(self, inbox: str) -> None:
        if self._beat_s:
            self._beats_s = self._loop.time() + self._beat_s
        if self._has_flow and self._asked is None and self._unconfirmed > self._window // 2:
            consumer = self._consumer
            self._num_asked += 1
            subject = f"$JS.FC.{consumer.stream.name}.{consumer.name}.{self._num_asked}"
            self._asked = (subject, self._unconfirmed)
            consumer.tell(inbox, status(100, "FlowControl Request"), subject)

    def confirm(self, subject: str) -> None:
        """The listener has what it was asked about."""
        if self._asked is not None and self._asked[0] == subject:
            self._unconfirmed -= self._asked[1]
            self._asked = None
            self._window = min(2 * self._window, WINDOW_BYTES)
            self._consumer.wake()

    def num_waiting(self) -> int:
        return 0

    def rest(self, is_at_end: bool) -> float | None:
        if self._beats_s is not None and self._loop.time() >= self._beats_s:
            self._beats_s = self._loop.time() + self._beat_s
            if self._consumer.stream.jetstream.listens(self._subject):
                headers = _heartbeat(self._consumer)
                if self._asked is not None:
                    headers["Nats-Consumer-Stalled"] = self._asked[0]
                self._consumer.tell(self._subject, headers)
        return self._beats_s

    def is_in_use(self) -> bool:
        return self._consumer.stream.jetstream.listens(self._subject)

    def end(self, why: str) -> None:
        if self.is_in_use():
            self._consumer.tell(self._subject, status(409, why))

    def close(self) -> None:
        pushing = self._consumer.stream.jetstream.pushing
        pushing[self._subject].remove(self._consumer)
        if not pushing[self._subject]:
            del pushing[self._subject]
