"""What every answer carries and leaves behind: its request id, a count, a line in the log."""

import logging
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import Request
from opentelemetry.metrics import Meter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.http.tally import HttpTally, KeyTally
from services.gateway.metrics.tables import HTTP_REQUESTS, REFUSED
from shared.clock import Clock
from shared.process.tracing import NO_SPAN, Attributes, Span, Tracing

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = b"x-request-id"
TRACEPARENT_HEADER = b"traceparent"  # W3C's
UNAUTHORIZED = 401
PROBES = ("/health", "/ping", "/ready")  # their 503 is the answer to what was asked, and no error
WATCHING = (
    *PROBES,
    "/version",
    "/docs",
    "/metrics",
    "/dashboard/",
)  # routes that are nobody's use of the model

_VALID = re.compile(rb"[!-~]{1,128}")  # visible ASCII: fits a header and a log line, whoever wrote it


class HttpMetrics:
    """Of the HTTP requests. ``tally`` and ``keys`` are what the dashboard shows of them."""

    def __init__(self, meter: Meter, clock: Clock) -> None:
        self._requests = HTTP_REQUESTS.counter(meter)
        self._refused = REFUSED.counter(meter)
        self._clock = clock
        self.tally = HttpTally()
        self.keys = KeyTally()

    @property
    def num_refused(self) -> int:
        return self.tally.num_refused

    def answered(self, method: str, route: str, status: int, refused: str | None, key_name: str = "") -> None:
        """``refused``: why it was not served, where it was valid; ``key_name``: of a known key."""
        if route not in PROBES:
            self.tally.answered(self._clock.monotonic_s(), status, refused)
        if route != "/" and not route.startswith(WATCHING):
            self.keys.answered(key_name, status, refused)
        self._requests.add(1, {"method": method, "route": route, "status": status})
        if refused is not None:
            self._refused.add(1, {"reason": refused})


@dataclass(frozen=True, slots=True)
class Answers:
    """Around everything else, so that an answer of any layer has an id. One that the client sent is kept where it is
    1 to 128 visible ASCII characters; else it is replaced. Errors are logged as info, all else as debug, and what comes
    without a key, of which anybody can send any number.
    ``refused`` in the request's state is why it was not served, for the metrics."""

    app: ASGIApp
    metrics: HttpMetrics
    tracing: Tracing
    clock: Clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(scope["headers"])
        scope["state"]["request_id"] = request_id.decode()
        span = scope["state"]["span"] = self._begin_span(scope)

        async def tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID_HEADER, request_id)]
                self._answered(scope, message["status"])
            await send(message)

        try:
            await self.app(scope, receive, tagged)
        finally:
            span.end(self.clock.unix_s())

    def _begin_span(self, scope: Scope) -> Span:
        """Until the last byte of the answer. Nobody asks what is only watched."""
        path = scope["path"]
        if not self.tracing.is_on or path == "/" or path.startswith(WATCHING):
            return NO_SPAN
        parent = next((value for name, value in scope["headers"] if name == TRACEPARENT_HEADER), b"")
        about: Attributes = {
            "http.request.method": scope["method"],
            "url.path": path,
            "slackwater.http_request_id": scope["state"]["request_id"],
        }
        at_s = self.clock.unix_s()
        return self.tracing.begin(scope["method"], at_s, parent.decode("latin-1"), about, is_served=True)

    def _answered(self, scope: Scope, status: int) -> None:
        route = getattr(scope.get("route"), "path", "unknown")
        refused = scope["state"].get("refused")
        self.metrics.answered(scope["method"], route, status, refused, scope["state"].get("key_name", ""))
        about = {"http_request_id": scope["state"]["request_id"], "method": scope["method"], "path": scope["path"]}
        span: Span = scope["state"]["span"]
        span.say({"http.response.status_code": status, "http.route": route}, f"{scope['method']} {route}")
        about |= {"trace_id": span.trace_id} if span.trace_id else {}
        level = logging.INFO if status >= 400 and status != UNAUTHORIZED else logging.DEBUG
        logger.log(level, "answered", extra={**about, "status": status, "refused": refused})


def request_id_of(request: Request) -> str:
    """The id that its answer carries."""
    request_id: str = request.state.request_id
    return request_id


def span_of(request: Request) -> Span:
    """Of the HTTP request; none where it is not traced."""
    span: Span = request.state.span
    return span


def _request_id(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    given = (value for name, value in headers if name == REQUEST_ID_HEADER and _VALID.fullmatch(value))
    return next(given, None) or f"req_{uuid.uuid4().hex}".encode()
