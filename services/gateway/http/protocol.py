"""uvicorn's HTTP connections, with an end to those whose client does not read, and none that outlives its client."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

logger = logging.getLogger(__name__)

WRITE_BUFFER_BYTES = 64 * 1024  # beyond it an answer waits for its client; it goes on when a quarter is left


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
        """uvicorn tells the newest request of the connection; where clients send several ahead, an older one may be
        what is being answered."""
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
