"""uvicorn inside the service's own loop and life: signals are the service's business."""

import socket
import sys
from functools import partial
from typing import Any, cast

import uvicorn
from opentelemetry.metrics import Meter
from starlette.types import ASGIApp

from services.gateway.http.protocol import HttpProtocol
from shared.errors import ConfigError
from shared.process.telemetry import reading

BACKLOG = 2048
UNSENT_BYTES = 64 * 1024  # that the kernel takes of a connection beyond what its client has room for
TCP_NOTSENT_LOWAT = 25  # linux/tcp.h


class HttpServer:
    """``start`` listens, ``serve`` runs until cancelled, ``drain`` lets open answers finish."""

    def __init__(self, app: ASGIApp, host: str, port: int, drain_s: int, write_timeout_s: float) -> None:
        self._host = host
        self._port = port
        self.num_stalled = 0  # connections that were ended because their clients did not read
        config = uvicorn.Config(
            app,
            loop="none",
            http=cast(Any, partial(HttpProtocol, write_timeout_s=write_timeout_s, on_stall=self._count_stall)),
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

    async def drain(self) -> None:
        """Take no more connections, wait up to ``drain_s`` for open answers, then cut what is left."""
        await self._server.shutdown(sockets=self._sockets)

    def observe(self, meter: Meter) -> None:
        """Connections, requests being answered, and clients cut off because they did not read."""
        state = self._server.server_state
        meter.create_observable_gauge("slackwater.http.connections", [reading(lambda: len(state.connections))])
        meter.create_observable_gauge("slackwater.http.answering", [reading(lambda: len(state.tasks))])
        meter.create_observable_counter("slackwater.http.stalled", [reading(lambda: self.num_stalled)])

    def _count_stall(self) -> None:
        self.num_stalled += 1
