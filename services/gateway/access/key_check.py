"""Who calls: each request's API key, and a refusal where a key is required and none that is known came."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.access.api_keys import ANONYMOUS, ApiKeys
from services.gateway.http.errors import error_response

OPEN_PATHS = ("/health", "/ready", "/metrics")  # of whoever watches the process; nothing of a request is in them
PAGE, PAGE_FILES = "/", "/dashboard/static/"  # the dashboard, which asks for a key itself


class KeyCheck:
    """Around all routes, known or not, so that a new route is protected without its doing."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            authorization = Headers(scope=scope).get("authorization")
            caller = self._keys.find(authorization)
            scope["state"]["caller"] = caller or ANONYMOUS
            if caller is None and self._keys.required and not _is_open(scope["path"]):
                scope["state"]["refused"] = "key"
                await _refuse(authorization)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_open(path: str) -> bool:
    return path in (*OPEN_PATHS, PAGE) or path.startswith(PAGE_FILES)


def _refuse(authorization: str | None) -> ASGIApp:
    headers = {"WWW-Authenticate": "Bearer"}
    if authorization is None:
        message = "no API key was given; send it as a header: Authorization: Bearer KEY"
        return error_response(401, message, headers=headers)
    return error_response(401, "the API key is not known here", code="invalid_api_key", headers=headers)
