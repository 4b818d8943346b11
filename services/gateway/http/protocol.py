"""One connection, as uvicorn has it, with an end to what its client does not send or read in time."""

import asyncio
import logging
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from services.gateway.http.errors import INVALID_REQUEST, OVERLOADED, RETRY_AFTER_S, error_response
from services.gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

WRITE_BUFFER_BYTES = 64 * 1024  # beyond it an answer waits for its client; it goes on when a quarter is left
READ_BYTES, READ_SHARE = 48 * 1024, 0.1  # at least so many, and so much of what waits, have to be taken in time
MAX_SENT_AHEAD = 8  # requests on one connection; with more it is not read until the first of them is answered
HEADER_LINE_BYTES = 4  # of a header besides its name and value
FRAMING = (b"content-length", b"transfer-encoding")  # headers that say where a body ends


@dataclass
class Connections:
    """Those of each client, by its address, and how many were not borne with."""

    max_per_client: int
    num_stalled: int = 0  # that were ended because their clients did not read
    num_refused: int = 0  # whose clients had too many
    _num_open: Counter[str] = field(default_factory=Counter)

    def enter(self, client: str) -> bool:
        """One more of this client, unless that is too many."""
        if self._num_open[client] >= self.max_per_client:
            self.num_refused += 1
            return False
        self._num_open[client] += 1
        return True

    def leave(self, client: str) -> None:
        """One that had entered."""
        self._num_open[client] -= 1
        if not self._num_open[client]:
            del self._num_open[client]


class HeadTooLargeError(Exception):
    """Raised inside the parser, which makes an error of its own of it."""


class HttpProtocol(HttpToolsProtocol):
    """A request's line and headers are bounded, together, and have to come in time. An answer that waits for its client
    for ``write_timeout_s``, or is not taken to its end for so long, ends the connection, unless enough of it was taken
    meanwhile: what was to be written is dropped, and the request finds its client gone."""

    def __init__(self, *args: Any, settings: GatewaySettings, clients: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settings = settings
        self._clients = clients
        self._has_entered = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._num_unread = 0  # bytes, when it was set
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_head = False
        self._num_head_bytes = 0  # that the parser has given out
        self._num_held_bytes = 0  # that it may have kept, but for the rest of what came with the end of a body or head
        self._answering: RequestResponseCycle | None = None
        self._is_head_known = False  # that the parser reads now
        self._data = self._rest = b""  # what it reads, and what another one reads then

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        super().connection_made(transport)
        self._has_entered = self._clients.enter(self._address)
        if self._has_entered:
            self._expect_head(True)
        else:
            what = f"this client has {self._clients.max_per_client} connections, and may have no more; try again later"
            self._refuse(429, what, OVERLOADED, {"Retry-After": str(RETRY_AFTER_S)})

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn tells the connection's newest request; of several sent ahead, an older one may be in its answer."""
        if self._has_entered:
            self._clients.leave(self._address)
        self._expect_head(False)
        self._expect_reading(False)
        if self._is_answering:
            assert self._answering is not None
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._num_held_bytes += len(data)
        self._rest = data
        while self._rest:
            self._data, self._rest = self._rest, b""
            super().data_received(self._data)
        self._data = b""
        if self.transport.is_closing():
            return
        if self._num_head_bytes + self._num_held_bytes > self._settings.max_header_bytes:
            self._refuse_head()
        elif self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_head(True)

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn's word, within an ``except``, for the end of a head that offers another protocol, as Java's clients
        do. None is taken, so that HTTP goes on, but the parser has taken what follows for that protocol: another one
        reads it, which is told how the body is framed."""
        offer = sys.exc_info()[1]
        assert isinstance(offer, httptools.HttpParserUpgrade)
        self._rest = self._data[offer.args[0] :]
        framing = b"".join(b"%s: %s\r\n" % header for header in self.headers if header[0] in FRAMING)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self._is_head_known = True
        try:
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
        except httptools.HttpParserError:  # of a framing that there is not
            self._rest = b""
            self.send_400_response("Invalid HTTP request received.")
        self._is_head_known = False

    def on_message_begin(self) -> None:
        if self._is_head_known:
            return
        super().on_message_begin()
        self._in_head = True
        self._num_head_bytes = 0

    def on_url(self, url: bytes) -> None:
        if self._is_head_known:
            return
        super().on_url(url)
        self._take_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Those behind a chunked body too."""
        if self._is_head_known:
            return
        self._take_head(len(name) + len(value) + HEADER_LINE_BYTES)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_head_known:
            return
        self._in_head = False
        self._num_held_bytes = 0
        self._expect_head(False)
        super().on_headers_complete()
        if 0 < len(self.pipeline) <= MAX_SENT_AHEAD:
            self.flow.resume_reading()  # by which its client is seen to leave

    def on_body(self, body: bytes) -> None:
        self._num_held_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Or what the parser takes for it: the head that offers another protocol."""
        self._num_held_bytes = 0
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's word for what its parser does not take."""
        if self._is_head_too_large:
            self._refuse_head()
        else:
            self._refuse(400, msg)

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
        if cycle.scope["http_version"] == "1.0":
            app = partial(_unchunked, app, cycle)
        super()._start_asgi_task(cycle, app)

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def _is_answering(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    @property
    def _is_head_too_large(self) -> bool:
        return self._num_head_bytes > self._settings.max_header_bytes

    def _take_head(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        self._num_held_bytes = max(0, self._num_held_bytes - num_bytes)
        if self._is_head_too_large:
            raise HeadTooLargeError

    def _expect_head(self, expected: bool) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if expected:
            self._head_timer = self.loop.call_later(self._settings.header_timeout_s, self._head_missed)

    def _head_missed(self) -> None:
        if self._in_head:
            self._refuse(408, f"the request's headers did not come within {self._settings.header_timeout_s:g} s")
        else:  # nobody has asked for anything
            self.transport.close()

    def _refuse_head(self) -> None:
        self._refuse(431, f"the request's line and headers have more than {self._settings.max_header_bytes} bytes")

    def _refuse(
        self, status: int, message: str, type: str = INVALID_REQUEST, headers: dict[str, str] | None = None
    ) -> None:
        """Answer what is not a whole request, and close; nothing is written into the answer to one."""
        logger.debug("connection refused", extra={"client": self.client, "status": status, "why": message})
        if self._is_answering:
            self.transport.abort()
            return
        answer = error_response(status, message, type, headers={"Connection": "close", **(headers or {})})
        lines = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + bytes(answer.body))
        self.transport.close()

    def _expect_reading(self, expected: bool) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if expected:
            self._num_unread = self.transport.get_write_buffer_size()
            self._stall_timer = self.loop.call_later(self._settings.write_timeout_s, self._stalled)

    def _stalled(self) -> None:
        self._stall_timer = None
        num_left = self.transport.get_write_buffer_size()
        if not (self.flow.write_paused or (not self._is_answering and num_left > 0)):
            return
        if self._num_unread - num_left >= max(READ_BYTES, READ_SHARE * self._num_unread):
            self._expect_reading(True)
        else:
            logger.info("client does not read", extra={"client": self.client})
            self._clients.num_stalled += 1
            self.transport.abort()


async def _unchunked(app: ASGIApp, cycle: RequestResponseCycle, scope: Scope, receive: Receive, send: Send) -> None:
    """For a client of HTTP/1.0, which knows no chunks, as which uvicorn sends what has no length told: that ends with
    its connection."""
    has_length = True

    async def send_plain(message: Message) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = any(name == b"content-length" for name, _ in message["headers"])
            cycle.chunked_encoding = None if has_length else False
        elif not has_length:
            cycle.expected_content_length = len(message["body"])
        await send(message)

    await app(scope, receive, send_plain)
