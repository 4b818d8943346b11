"""httpx over the simulated network, so that the clients of the campaign with real processes are clients here too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
from starlette.types import Message

from tests.simulation.http import BrokenConnection, Exchange, Network


class VirtualTransport(httpx.AsyncBaseTransport):
    """To the server of this name. A connection of its own for each request."""

    def __init__(self, network: Network, server: str) -> None:
        self._network = network
        self._server = server

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        read_s = request.extensions.get("timeout", {}).get("read")
        path = request.url.raw_path.decode()
        try:
            exchange = self._network.open(self._server, request.method, path, request.headers.raw)
        except BrokenConnection as error:
            raise httpx.ConnectError(str(error), request=request) from error
        try:
            assert isinstance(request.stream, httpx.AsyncByteStream)
            async for piece in request.stream:
                exchange.push(piece, more=True)
            exchange.push(b"", more=False)
            start = await _next(exchange, read_s, request)
        except BaseException:
            exchange.leave()
            raise
        return httpx.Response(start["status"], headers=start["headers"], stream=_Body(exchange, read_s, request))


class _Body(httpx.AsyncByteStream):
    def __init__(self, exchange: Exchange, read_s: float | None, request: httpx.Request) -> None:
        self._exchange = exchange
        self._read_s = read_s
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            message = await _next(self._exchange, self._read_s, self._request)
            if body := message.get("body"):
                yield body
            if not message.get("more_body", False):
                return

    async def aclose(self) -> None:
        self._exchange.leave()


async def _next(exchange: Exchange, read_s: float | None, request: httpx.Request) -> Message:
    try:
        async with asyncio.timeout(read_s):
            return await exchange.next()
    except TimeoutError:
        raise httpx.ReadTimeout("nothing came in time", request=request) from None
    except BrokenConnection as error:
        raise httpx.ReadError(str(error), request=request) from error
