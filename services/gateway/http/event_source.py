"""Server-sent events, and an end to whatever is done for a client that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from types import MappingProxyType
from typing import Any

from fastapi import Response
from starlette.types import Receive, Scope, Send

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must pass events on at once
]


class EventSource(Response):
    """Ends with its events, or when the client leaves."""

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        during: AbstractAsyncContextManager[Any],
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``during``: entered before the answer starts, so that an error in it is answered, and left at its end,
        whatever ends it."""
        super().__init__()
        self._events = events
        self._during = during
        self._head = [*HEADERS, *((name.encode(), value.encode()) for name, value in headers.items())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._during, aclosing(self._events):
            await unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._head})
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work; False where the client has gone before its end, which cancels it."""
    async with asyncio.TaskGroup() as tasks:
        ways = tasks.create_task(work), tasks.create_task(_leaving(receive))
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        is_done = ways[0].done()
        for way in ways:
            way.cancel()
    return is_done


async def _leaving(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
