"""uvicorn inside the service's own loop and life: signals are the service's business."""

from __future__ import annotations

import socket

import uvicorn
from starlette.types import ASGIApp

from shared.errors import ConfigError

BACKLOG = 2048


class HttpServer:
    """``start`` listens, ``serve`` runs until cancelled, ``drain`` lets open answers finish."""

    def __init__(self, app: ASGIApp, host: str, port: int, drain_s: int) -> None:
        self._host = host
        self._port = port
        config = uvicorn.Config(
            app,
            loop="none",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=drain_s,
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._sockets: list[socket.socket] = []

    async def start(self) -> None:
        """Raises ConfigError where the address cannot be used."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            self._sockets = [socket.create_server((self._host, self._port), family=family, backlog=BACKLOG)]
        except OSError as error:
            raise ConfigError(f"cannot listen on {self._host}:{self._port}: {error.strerror}; try --port") from error
        await self._server.startup(sockets=self._sockets)

    async def serve(self) -> None:
        """Until cancelled."""
        await self._server.main_loop()

    async def drain(self) -> None:
        """Take no more connections, wait up to ``drain_s`` for open answers, then cut what is left."""
        await self._server.shutdown(sockets=self._sockets)
