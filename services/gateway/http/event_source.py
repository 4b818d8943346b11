"""Answers that come piece by piece, as server-sent events do, and an end to whatever is done for a client that is
gone."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

COMMENT = b": nothing yet\n\n"  # clients pass over it
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
    """Of events, and of comments while none comes: proxies cut a connection that is silent for long, as a rule for a
    minute."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        during: AbstractAsyncContextManager[Any],
        headers: Mapping[str, str] | None = None,
        comment_s: float = 0.0,
    ) -> None:
        """``during`` is entered before the answer starts, so that an error in it is answered, and left at its end.
        ``comment_s``: of silence before a comment; 0: there is none."""
        super().__init__(events, headers={**HEADERS, **(headers or {})})
        self._comment_s = comment_s
        self._events = events
        self._during = during

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._during, aclosing(self._events):
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        if not self._comment_s:
            await super().stream_response(send)
            return
        line = _Line(send)
        commenting = asyncio.get_running_loop().create_task(line.comment(self._comment_s))
        try:
            await super().stream_response(line.send)
        finally:
            commenting.cancel()


class _Line:
    """To a client: one message at a time, and the time since which there was none."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._sent_s = self._loop.time()

    async def send(self, message: Message) -> None:
        async with self._lock:
            await self._send(message)
        self._sent_s = self._loop.time()

    async def comment(self, silence_s: float) -> None:
        """Until cancelled."""
        while True:
            left_s = self._sent_s + silence_s - self._loop.time()
            if left_s > 0:
                await asyncio.sleep(left_s)
            else:
                await self.send({"type": "http.response.body", "body": COMMENT, "more_body": True})


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
