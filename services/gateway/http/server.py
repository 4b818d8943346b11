"""uvicorn inside the service's own loop and life."""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol, cast

import uvicorn
from starlette.types import ASGIApp

from services.gateway.http.protocol import Connections, HttpProtocol
from services.gateway.settings import GatewaySettings
from shared.errors import ConfigError

BACKLOG = 2048
UNSENT_BYTES = 64 * 1024  # that the kernel takes of a connection beyond what its client has room for
TCP_NOTSENT_LOWAT = 25  # linux/tcp.h
LAST_WORDS_S = 2  # for answers that were told to end


class Listener(Protocol):
    """What has an application answer HTTP requests."""

    clients: Connections

    @property
    def num_connections(self) -> int: ...

    @property
    def num_answering(self) -> int:
        """Requests whose answers have not ended."""

    async def start(self) -> None: ...

    async def serve(self) -> None: ...

    async def drain(self, end_answers: Callable[[], Awaitable[None]]) -> None: ...


class HttpServer:
    """``start`` listens, ``serve`` runs until cancelled, ``drain`` lets open answers finish."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings) -> None:
        self._host = settings.host
        self._port = settings.port
        self._drain_s = settings.drain_s
        self.clients = Connections(settings.max_client_connections)
        config = uvicorn.Config(
            app,
            loop="none",
            http=cast(Any, partial(HttpProtocol, settings=settings, clients=self.clients)),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=cast(int, settings.keep_alive_s),
            timeout_graceful_shutdown=cast(int, settings.drain_s + LAST_WORDS_S),
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._state = self._server.server_state
        self._sockets: list[socket.socket] = []

    @property
    def num_connections(self) -> int:
        return len(self._state.connections)

    @property
    def num_answering(self) -> int:
        return len(self._state.tasks)

    async def start(self) -> None:
        """Raises ConfigError where the address cannot be used."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listening = socket.create_server((self._host, self._port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise ConfigError(f"cannot listen on {self._host}:{self._port}: {error.strerror}; try --port") from error
        if sys.platform == "linux":  # connections inherit it
            listening.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._sockets = [listening]
        await self._server.startup(sockets=self._sockets)

    async def serve(self) -> None:
        """Until cancelled."""
        await self._server.main_loop()

    async def drain(self, end_answers: Callable[[], Awaitable[None]]) -> None:
        """Take no more connections and wait up to ``drain_s`` for open answers. Those that are left then are ended by
        ``end_answers``; what is still open after that is cut."""
        shutdown = asyncio.ensure_future(self._server.shutdown(sockets=self._sockets))
        await asyncio.wait((shutdown,), timeout=self._drain_s)
        if not shutdown.done():
            await end_answers()
        await shutdown
