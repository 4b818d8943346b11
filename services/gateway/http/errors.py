"""Every error that leaves the gateway, in OpenAI's shape."""

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.http.answers import request_id_of
from services.gateway.http.operation import JsonResponse
from services.gateway.http.unknown_urls import methods_there, nothing_there
from shared.errors import BusError, NoExecutorError, NotFoundOnBusError, SlackwaterError, TooLargeForBusError
from shared.openai.errors import RequestError
from shared.openai.objects import error_body

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 2
CLIENT_CLOSED_REQUEST = 499
BODY_UNREAD = (408, 413)  # the rest of the body is not waited for, so nothing else can come on the connection

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
UNAVAILABLE = "service_unavailable"
OVERLOADED = "server_overloaded"
SHUTTING_DOWN = "the gateway is shutting down; send the request again"


class Refusal(SlackwaterError):
    """A request that is valid and not served, now or for this client: answered with 429 or 503 and Retry-After.
    ``reason`` names it among the metrics; ``code``, and ``type`` where it is another, are as OpenAI's."""

    def __init__(
        self,
        reason: str,
        message: str,
        retry_after_s: float,
        status: int = 503,
        code: str = OVERLOADED,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.status = status
        self.type = type or code
        self.code = code
        self.headers = {**(headers or {}), "Retry-After": str(max(1, math.ceil(retry_after_s)))}


@dataclass(frozen=True, slots=True)
class CutAnswers:
    """Around all routes. What is open when the gateway has to be gone is cancelled (``HttpServer.drain``): an answer
    that has not begun says so then, any other ends where it is."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except asyncio.CancelledError:
            if not has_begun:
                headers = {"Retry-After": str(RETRY_AFTER_S)}
                response = error_response(503, SHUTTING_DOWN, UNAVAILABLE, code=UNAVAILABLE, headers=headers)
                await response(scope, receive, send)


def install_error_handlers(app: FastAPI) -> None:
    """For what our own code raises, and what FastAPI and Starlette do."""
    ours = RequestError, Refusal, NoExecutorError, BusError
    for kind in (*ours, HTTPException, RequestValidationError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _on_error)


def error_response(
    status: int,
    message: str,
    type: str = INVALID_REQUEST,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """One error as an HTTP answer."""
    return JsonResponse(error_body(message, type, param, code), status_code=status, headers=headers)


async def _on_error(request: Request, error: Exception) -> Response:
    match error:
        case RequestError():
            headers = {"Connection": "close"} if error.status in BODY_UNREAD else None
            return error_response(error.status, error.message, INVALID_REQUEST, error.param, error.code, headers)
        case Refusal():
            request.state.refused = error.reason
            return error_response(error.status, error.message, error.type, code=error.code, headers=error.headers)
        case NoExecutorError() | BusError():
            return _unavailable(request, error)
        case HTTPException():
            return _not_routed(request, error)
        case RequestValidationError():  # a path or query parameter; FastAPI answers 422, OpenAI 400
            first = error.errors()[0]
            param = str(first["loc"][-1])
            return error_response(400, f"{param}: {first['msg']}", param=param)
        case ClientDisconnect():  # in the middle of a body; nobody reads the answer
            return Response(status_code=CLIENT_CLOSED_REQUEST)
    # The traceback is logged by the server, which gets the exception too, but knows no ids.
    logger.error("failed", extra={"http_request_id": request_id_of(request), "error": repr(error)})
    closes = {"Connection": "close"}  # as the server does behind an error that nobody foresaw
    return error_response(500, "the server failed to process the request", SERVER_ERROR, headers=closes)


def _not_routed(request: Request, error: HTTPException) -> Response:
    """Of FastAPI and Starlette, which know the URL alone."""
    if error.status_code == 404:
        return error_response(404, nothing_there(request), code="unknown_url")
    if error.status_code == 405:  # of several routes with this path Starlette names one
        methods = methods_there(request)
        message = f"{request.method} is not served at {request.url.path}; use {' or '.join(methods)}"
        return error_response(405, message, code="method_not_allowed", headers={"Allow": ", ".join(methods)})
    message = f"{error.detail}: {request.method} {request.url.path}"
    type = INVALID_REQUEST if error.status_code < 500 else SERVER_ERROR
    return error_response(error.status_code, message, type, headers=error.headers)


def _unavailable(request: Request, error: SlackwaterError) -> Response:
    ids = {"http_request_id": request_id_of(request), "path": request.url.path}
    logger.warning("unavailable", extra={**ids, "why": str(error)})
    if isinstance(error, NotFoundOnBusError):
        return error_response(404, f"not found: {error}", code="not_found")
    if isinstance(error, TooLargeForBusError):  # however often it is sent
        return error_response(413, str(error), code="request_too_large")
    message = f"the bus could not do it now; send the request again: {error}" if type(error) is BusError else str(error)
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return error_response(503, message, UNAVAILABLE, code=UNAVAILABLE, headers=headers)
