"""Answers that come piece by piece, as server-sent events do, and an end to whatever is done for a client that is
gone."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # proxies must pass events on at once
}


class Streamed(StreamingResponse):
    """Ends with its contents, or when the client leaves. Starlette's own imports more when it is first asked, which
    opens files: there may be none left then."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(receive, self.stream_response(send))


class EventSource(Streamed):
    """Of events."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        during: AbstractAsyncContextManager[Any],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``during`` is entered before the answer starts, so that an error in it is answered, and left at its end."""
        super().__init__(events, headers={**HEADERS, **(headers or {})})
        self._events = events
        self._during = during

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._during, aclosing(self._events):
            await super().__call__(scope, receive, send)


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
