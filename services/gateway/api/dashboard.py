"""The page, its files and its events."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from services.gateway.api.context import context_of
from services.gateway.dashboard.viewer_stream import ViewerStream

FOLDER = Path(__file__).parent.parent / "static"
STATIC_PATH = "/dashboard/static"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for each time, sent only where it has changed
}

router = APIRouter()


class PageFiles(StaticFiles):
    """Nothing of a request is in them, so they need no key."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """The page itself."""
    return FileResponse(FOLDER / "index.html", headers=HEADERS)


@router.get("/dashboard/events", include_in_schema=False)
async def events(request: Request) -> Response:
    """One event a second, as JSON, until the client leaves."""
    context = context_of(request)
    keys, authorization = context.keys, request.headers.get("authorization")
    return ViewerStream(context.dashboard, lambda: not keys.required or keys.find(authorization) is not None)
