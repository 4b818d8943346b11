"""Server-sent events for one page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi import Response
from starlette.types import Receive, Scope, Send

from services.gateway.dashboard.hub import DashboardHub
from services.gateway.live.event_stream import HEADERS


class ViewerStream(Response):
    """Ends when the page is closed, when the gateway stops, and when its caller ``may_look`` no longer: a key that is
    revoked has nothing begun that were to be finished."""

    def __init__(self, hub: DashboardHub, may_look: Callable[[], bool]) -> None:
        super().__init__()
        self._hub = hub
        self._may_look = may_look

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._hub.viewer():
            async with asyncio.TaskGroup() as tasks:
                ways = [tasks.create_task(_leaving(receive)), tasks.create_task(self._send_events(send))]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        seen = 0
        while (event := await self._hub.next_event(seen)) is not None and self._may_look():
            seen, data = event
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _leaving(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
