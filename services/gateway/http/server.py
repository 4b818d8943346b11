"""uvicorn inside the service's own loop and life, with an end to connections whose client does not read."""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from shared.errors import ConfigError

logger = logging.getLogger(__name__)

BACKLOG = 2048
WRITE_BUFFER_BYTES = 64 * 1024  # beyond it an answer waits for its client; it goes on when a quarter is left
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
        self.state = self._server.server_state  # the connections, and the tasks that answer requests
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

    def _count_stall(self) -> None:
        self.num_stalled += 1


class HttpProtocol(HttpToolsProtocol):
    """One connection. An answer that waits for its client for ``write_timeout_s``, or is not taken to its end for so
    long, ends it: what was to be written is dropped, and the request finds its client gone. ``on_stall`` is told."""

    def __init__(self, *args: Any, write_timeout_s: float, on_stall: Callable[[], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._write_timeout_s = write_timeout_s
        self._on_stall = on_stall
        self._stall_timer: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn tells the connection's newest request; of several sent ahead, an older one may be in its answer."""
        self._expect_reading(False)
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._expect_reading(False)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_reading(self.transport.get_write_buffer_size() > 0)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _expect_reading(self, expected: bool) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if expected:
            self._stall_timer = self.loop.call_later(self._write_timeout_s, self._stalled)

    def _stalled(self) -> None:
        self._stall_timer = None
        is_over = self._answering is None or self._answering.response_complete
        if self.flow.write_paused or (is_over and self.transport.get_write_buffer_size() > 0):
            logger.info("client does not read", extra={"client": self.client})
            self._on_stall()
            self.transport.abort()
