"""The server's end of one connection."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulation.nats.links import Pipe
from tests.simulation.nats.subjects import is_valid

if TYPE_CHECKING:
    from tests.simulation.nats.client import MemoryClient
    from tests.simulation.nats.server import MemoryServer

COMMAND_BYTES = 16
MAX_PENDING_BYTES = 64 * 1024**2  # nats-server's max_pending
PING_S = 120.0  # its ping_interval
MAX_PINGS = 2  # that may be without an answer
HEADERS_BYTES = len(b"NATS/1.0\r\n\r\n")
FIELD_BYTES = len(b": \r\n")

Headers = dict[str, str]


def headers_size(headers: Headers | None) -> int:
    """In bytes, on the wire and in the store."""
    if headers is None:
        return 0
    return HEADERS_BYTES + sum(len(k.encode()) + len(v.encode()) + FIELD_BYTES for k, v in headers.items())


@dataclass(eq=False, slots=True)
class Sub:
    """What a connection subscribed to. ``num_left``: messages until it ends by itself; None: it does not."""

    session: Session
    sid: int
    subject: str
    queue: str
    num_left: int | None = None


class Session:
    """``up`` calls its ``on_...`` as the client's commands arrive; ``down`` calls the client's."""

    def __init__(self, server: MemoryServer, client: MemoryClient, name: str) -> None:
        link = server.link(name)
        self.name = name
        self.client = client
        self.up = Pipe(link.up, server.rng, server.context)
        self.down = Pipe(link.down, server.rng, copy_context())
        self.subs: dict[int, Sub] = {}
        self.is_open = False  # at the server
        self._is_lost = False  # the server's machine had no power since
        self._link = link
        self._server = server
        self._num_pings = 0
        self._pinging: asyncio.TimerHandle | None = None

    # from the client

    def on_connect(self, pong: asyncio.Future[None]) -> None:
        if self._is_known():
            self.down.send(COMMAND_BYTES, _answer, pong, None)
            self._pinging = asyncio.get_running_loop().call_later(PING_S, self._ping)

    def on_publish(self, subject: str, reply: str, data: bytes, headers: Headers | None) -> None:
        if not self._is_known():
            return
        if len(data) + headers_size(headers) > self._server.max_payload:
            self.close("Maximum Payload Violation")
        elif self._link.up.loses is None or not self._link.up.loses(subject):
            self._server.publish(self, subject, reply, data, headers)

    def on_subscribe(self, sid: int, subject: str, queue: str) -> None:
        if self._is_known() and sid not in self.subs and is_valid(subject):
            self.subs[sid] = sub = Sub(self, sid, subject, queue)
            self._server.listeners.add(sub)
            self._server.jetstream.on_interest(subject)

    def on_unsubscribe(self, sid: int, num_left: int) -> None:
        sub = self.subs.get(sid) if self._is_known() else None
        if sub is not None:
            sub.num_left = num_left or None
            if not num_left:
                self._remove(sub)

    def on_ping(self) -> None:
        if self._is_known():
            self.down.send(COMMAND_BYTES, self.client.on_pong, self)

    def on_pong(self) -> None:
        if self._is_known():
            self._num_pings = 0

    def _is_known(self) -> bool:
        """Whether the server has this connection. Its system resets one that it does not know."""
        if self._is_lost:
            self._server.reset(self)
        return self.is_open

    def close_from_client(self) -> None:
        """Its socket is closed. What it sent before arrives; nothing arrives there any more."""
        self.down.close()
        if id(self.up) in self._link.up.pipes:
            self.up.send(0, self.close)

    # to the client

    def deliver(self, sub: Sub, subject: str, reply: str, data: bytes, headers: Headers | None) -> None:
        lost = self._link.down.loses
        if lost is not None and lost(subject):
            return
        if sub.num_left is not None:
            sub.num_left -= 1
            if sub.num_left <= 0:
                self._remove(sub)
        num_bytes = COMMAND_BYTES + len(subject) + len(reply) + len(data)
        if self.down.num_bytes + num_bytes > MAX_PENDING_BYTES:
            self.close()  # as a slow consumer
            return
        self.down.send(num_bytes, self.client.on_message, self, sub.sid, subject, reply, data, headers)

    def tell(self, future: asyncio.Future[Any], result: Any) -> None:
        """Resolve it at the client."""
        self.down.send(COMMAND_BYTES, _answer, future, result)

    def close(self, why: str = "") -> None:
        """The server's end; the client learns of it when that arrives."""
        if not self.is_open:
            self.up.close()
            return
        self.end()
        self.up.close()
        if why:
            self.down.send(COMMAND_BYTES, self.client.on_error, self, why)
        self.down.send(0, self.client.on_end, self)

    def lose_power(self) -> None:
        """Without a word; what comes once there is power again is answered by a reset."""
        self.end()
        self._is_lost = True

    def reset(self) -> None:
        self.up.close()
        self.down.send(0, self.client.on_end, self)

    def end(self) -> None:
        self.is_open = False
        if self._pinging is not None:
            self._pinging.cancel()
        for sub in list(self.subs.values()):
            self._remove(sub)
        self._server.forget(self)

    def _remove(self, sub: Sub) -> None:
        if self.subs.pop(sub.sid, None) is not None:
            self._server.listeners.remove(sub)

    def _ping(self) -> None:
        self._num_pings += 1
        if self._num_pings > MAX_PINGS:
            self.close("Stale Connection")
            return
        self.down.send(COMMAND_BYTES, self.client.on_ping, self)
        self._pinging = asyncio.get_running_loop().call_later(PING_S, self._ping)


def _answer(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
