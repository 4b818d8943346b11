"""The page, its files and its events."""

from collections.abc import AsyncGenerator
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from services.gateway.access.api_keys import ApiKeys
from services.gateway.api.context import context_of
from services.gateway.dashboard.hub import DashboardHub
from services.gateway.http.event_source import EventSource

FOLDER = Path(__file__).parent.parent / "static"
STATIC_PATH = "/dashboard/static"

OWN = "; ".join(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect"))
POLICY = f"default-src 'none'; {OWN}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
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
    """One event a second, as JSON, until the client leaves, the gateway stops, or the client's key is revoked."""
    context = context_of(request)
    events = _events(context.dashboard, context.keys, request.headers.get("authorization"))
    return EventSource(events, context.dashboard.viewer())


async def _events(hub: DashboardHub, keys: ApiKeys, authorization: str | None) -> AsyncGenerator[bytes, None]:
    seen = 0
    while (event := await hub.next_event(seen)) is not None and (not keys.required or keys.find(authorization)):
        seen, data = event
        yield data
