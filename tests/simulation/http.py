"""HTTP without sockets: a gateway's application is called as a server would, in the gateway's process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

from services.gateway.http.protocol import Connections
from services.gateway.http.server import LAST_WORDS_S
from services.gateway.settings import GatewaySettings
from tests.simulation.process import Process


class BrokenConnection(Exception):
    """There is no server, it has gone, or the answer has not come to its end."""


@dataclass(eq=False)
class Exchange:
    """One request and its answer, as both ends of its connection see it."""

    request: deque[Message] = field(default_factory=deque)
    answer: deque[Message] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)  # in the answer
    asked: asyncio.Event = field(default_factory=asyncio.Event)  # something of the request has come, or its client left
    is_cut: bool = False  # for the client: no more comes
    has_left: bool = False  # the client
    is_complete: bool = False  # the answer

    def push(self, piece: bytes, more: bool) -> None:
        """More of the request's body."""
        self.request.append({"type": "http.request", "body": piece, "more_body": more})
        self.asked.set()

    def tell(self, message: Message) -> None:
        if not self.is_cut:
            self.answer.append(message)
            self.news.set()

    def cut(self) -> None:
        self.is_cut = True
        self.news.set()

    def leave(self) -> None:
        """The client closes the connection."""
        self.has_left = True
        self.asked.set()

    async def receive(self) -> Message:
        """The server's ASGI callable."""
        while not self.request:
            if self.has_left or self.is_complete:
                return {"type": "http.disconnect"}
            self.asked.clear()
            await self.asked.wait()
        return self.request.popleft()

    async def send(self, message: Message) -> None:
        """The server's ASGI callable; after the client left it writes into nothing, as uvicorn does."""
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_complete = True
            self.asked.set()
        self.tell(message)

    async def next(self) -> Message:
        """The client's: what comes next of the answer. Raises BrokenConnection."""
        while not self.answer:
            if self.is_cut:
                raise BrokenConnection("the connection broke")
            self.news.clear()
            await self.news.wait()
        return self.answer.popleft()


class VirtualHttpServer:
    """``services.gateway.http.server.HttpServer`` without a socket. It listens at a name in ``network``."""

    def __init__(self, network: Network, process: Process, app: ASGIApp, settings: GatewaySettings) -> None:
        self._connections: dict[Exchange, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.clients = Connections(settings.max_client_connections)
        self._network = network
        self._process = process
        self._app = app
        self._drain_s = settings.drain_s
        process.on_death.append(self.vanish)

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    @property
    def num_answering(self) -> int:
        return len(self._tasks)

    async def start(self) -> None:
        self._network.servers[self._process.name] = self

    async def serve(self) -> None:
        """Until cancelled."""
        await asyncio.get_running_loop().create_future()

    async def drain(self, end_answers: Callable[[], Awaitable[None]]) -> None:
        self._stop_listening()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=self._drain_s)
        if self._tasks:
            await end_answers()
            await asyncio.wait(list(self._tasks), timeout=LAST_WORDS_S)
        for task in list(self._tasks):
            task.cancel()
        for exchange in list(self._connections):
            exchange.cut()

    def vanish(self) -> None:
        """The process is dead: every connection is reset."""
        self._stop_listening()
        for exchange in list(self._connections):
            exchange.cut()

    def accept(self, scope: dict[str, Any], exchange: Exchange) -> None:
        """From a client's context."""
        self._connections[exchange] = None
        self._process.call(asyncio.get_running_loop().call_soon, self._begin, scope, exchange)

    def _begin(self, scope: dict[str, Any], exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(scope, exchange))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _answer(self, scope: dict[str, Any], exchange: Exchange) -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            self._connections.pop(exchange, None)
            if not exchange.is_complete:
                exchange.cut()

    def _stop_listening(self) -> None:
        if self._network.servers.get(self._process.name) is self:
            del self._network.servers[self._process.name]


class Network:
    """Where clients find gateways, by the names of their processes."""

    def __init__(self) -> None:
        self.servers: dict[str, VirtualHttpServer] = {}

    def open(self, server: str, method: str, path: str, headers: Sequence[tuple[bytes, bytes]]) -> Exchange:
        """Begin a request, whose body is still to come. Raises BrokenConnection where nobody listens."""
        found = self.servers.get(server)
        if found is None:
            raise BrokenConnection(f"{server} does not listen")
        exchange = Exchange()
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in headers],
            "client": ("127.0.0.1", 40000),
            "server": ("127.0.0.1", 8000),
            "state": {},
        }
        found.accept(scope, exchange)
        return exchange
