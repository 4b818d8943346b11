"""What nats-py does with bytes, where there are none."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import nats.errors
from nats.aio.client import _HEADER_KEY_RE, _HEADER_VALUE_NEWLINES

from tests.simulation.nats.session import Headers

if TYPE_CHECKING:
    from tests.simulation.nats.client import MemoryClient


class Transport:
    """What nats-py's own ``close`` does with its socket."""

    def __init__(self, client: MemoryClient) -> None:
        self._client = client

    def writelines(self, _: list[bytes]) -> None:
        self._client._hand_over()

    async def drain(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Whoever still reads comes to the end."""
        if self._client._session is not None:
            self._client._session.close_from_client()
            self._client.on_end(self._client._session)
        self._client._stop_reading()

    async def wait_closed(self) -> None:
        """It is."""


class Unhandled(asyncio.Queue[Any]):
    """Messages of a subscription whose one task handles them: asyncio's own, of which most is for many readers."""

    _queue: deque[Any]  # of the base class, as are the others
    _getters: deque[asyncio.Future[None]]
    _finished: asyncio.Event
    _maxsize: int
    _unfinished_tasks: int

    def put_nowait(self, item: Any) -> None:
        if 0 < self._maxsize <= len(self._queue):
            raise asyncio.QueueFull
        self._queue.append(item)
        self._unfinished_tasks += 1
        if self._finished._value:
            self._finished.clear()
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)

    def task_done(self) -> None:
        self._unfinished_tasks -= 1
        if not self._unfinished_tasks and self._finished._waiters:  # somebody joins
            self._finished.set()

    async def get(self) -> Any:
        queue = self._queue
        while not queue:
            getter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            await getter
        return queue.popleft()


async def within(future: asyncio.Future[Any], timeout_s: float) -> Any:
    """As asyncio.wait_for of Python 3.11 does it: a cancellation that comes together with the result is lost."""
    timer = asyncio.get_running_loop().call_later(timeout_s, _expire, future)
    try:
        return await future
    except asyncio.CancelledError:
        if future.cancelled() or not future.done():
            raise
        return future.result()
    finally:
        timer.cancel()


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def as_on_the_wire(headers: dict[str, Any]) -> Headers:
    """As they come out at the other end. Raises BadHeaderError."""
    sent: Headers = {}
    for key, value in headers.items():
        name = key.strip()
        if not name:
            continue
        if not _HEADER_KEY_RE.fullmatch(name):
            raise nats.errors.BadHeaderError(name)
        sent[str(getattr(name, "value", name))] = value.strip().translate(_HEADER_VALUE_NEWLINES).strip()
    return sent
