"""What all clients have: the addresses of the gateways, and requests that are tried until they are answered."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.checker.history import History, ServerError
from tests.faults.load.questions import CHAT, COMPLETIONS

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # made once: httpx reads all certificates for each client otherwise
TIMEOUT = httpx.Timeout(60.0, connect=5.0)
AGAIN_S = 0.5
TRIED_S = 120.0
STREAM_S = 240.0  # longer than any answer may take, as a rule
BUSY = frozenset({429, 500, 502, 503})  # it is tried again
SERVER_ERROR, UNAVAILABLE = 500, 503


class Clients:
    """What the clients of one campaign share. ``is_over``: no new work is begun; ``stream_s``: longer than any answer
    may take."""

    def __init__(
        self,
        urls: Mapping[str, str],
        key: str,
        history: History,
        now: Callable[[], float],
        rng: random.Random,
        stream_s: float = STREAM_S,
    ) -> None:
        self.urls = urls
        self.history = history
        self.now = now
        self.rng = rng
        self.stream_s = stream_s
        self.is_over = asyncio.Event()
        self._headers = {"Authorization": f"Bearer {key}"}

    @asynccontextmanager
    async def http(self, server: str, limits: httpx.Timeout = TIMEOUT) -> AsyncIterator[httpx.AsyncClient]:
        """A connection of one's own."""
        async with httpx.AsyncClient(
            base_url=self.urls[server],
            headers=self._headers,
            timeout=limits,
            verify=NO_TLS,
            trust_env=False,
            event_hooks=self.hooks(server),
        ) as client:
            yield client

    def hooks(self, server: str) -> dict[str, list[Callable[[httpx.Response], Awaitable[None]]]]:
        """httpx's, by which errors of the server are written down. How a stream ends is, in any case."""

        async def note(answer: httpx.Response) -> None:
            asked, status = answer.request, answer.status_code
            if status >= SERVER_ERROR and status != UNAVAILABLE and asked.url.path not in (COMPLETIONS, CHAT):
                error = ServerError(self.now(), server, f"{asked.method} {asked.url.path}", status)
                self.history.server_errors.append(error)

        return {"response": [note]}

    def server(self) -> str:
        """One of the gateways."""
        return self.rng.choice([*self.urls])

    async def ask(self, method: str, path: str, server: str = "", **request: Any) -> httpx.Response | None:
        """Once, at any gateway where no ``server`` is named; None where no answer came."""
        async with self.http(server or self.server()) as client:
            try:
                return await client.request(method, path, **request)
            except httpx.HTTPError:
                return None

    async def ask_until(self, method: str, path: str, **request: Any) -> httpx.Response | None:
        """Again and again, at any gateway, while none answers or it says that it may be tried again; the last answer,
        None where there was none at all."""
        until_s, answer = self.now() + TRIED_S, None
        while self.now() < until_s:
            answer = await self.ask(method, path, **request)
            if answer is not None and answer.status_code not in BUSY:
                return answer
            await asyncio.sleep(AGAIN_S)
        return answer

    async def rest(self, at_most_s: float) -> None:
        """A while, or less where all is over."""
        await self.pause(self.rng.uniform(0.0, at_most_s))

    async def pause(self, pause_s: float) -> None:
        """So long, or less where all is over."""
        try:
            async with asyncio.timeout(pause_s):
                await self.is_over.wait()
        except TimeoutError:
            return


async def pages(client: httpx.AsyncClient, path: str) -> AsyncIterator[list[dict[str, Any]]]:
    """Of a list, the newest first. Raises httpx.HTTPError."""
    params: dict[str, str | int] = {"limit": 100}
    while True:
        page = (await client.get(path, params=params)).raise_for_status().json()
        yield page["data"]
        if not page["has_more"]:
            return
        params["after"] = page["data"][-1]["id"]
