"""The page, its files and its events."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Literal

import msgspec
from fastapi import APIRouter, Request, Response

from services.gateway.access.api_keys import ApiKeys
from services.gateway.api.context import context_of
from services.gateway.api.intake import caller_of
from services.gateway.dashboard.history import COLUMNS, Row
from services.gateway.dashboard.hub import DashboardHub
from services.gateway.dashboard.parts import ALL
from services.gateway.http.event_source import EventSource
from services.gateway.http.operation import JsonResponse
from services.gateway.http.page_files import PageFiles
from services.gateway.http.tally import KeyUse

FOLDER = Path(__file__).parent.parent / "static"

OWN = "; ".join(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect"))
POLICY = f"default-src 'none'; {OWN}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for each time, sent only where it has changed
}

FILES = PageFiles(FOLDER, HEADERS)

router = APIRouter()


@router.get("/", include_in_schema=False)
async def page(request: Request) -> Response:
    """The page itself."""
    return FILES.answer(request, "index.html")


@router.get("/dashboard/static/{name:path}", include_in_schema=False)
async def file(request: Request, name: str) -> Response:
    """What the page loads. Nothing of a request is in it, so it needs no key."""
    return FILES.answer(request, name)


@router.get("/dashboard/events", include_in_schema=False)
async def events(request: Request, model: str = ALL) -> Response:
    """One event a second, as JSON, until the client leaves, the gateway stops, or its key is revoked or ends; of one
    model, or of all."""
    context = context_of(request)
    events = _events(context.dashboard, context.keys, request.headers.get("authorization"), model)
    return EventSource(events, context.dashboard.viewer())


class OtherRows(msgspec.Struct, frozen=True):
    """Rows of a longer time, coarser."""

    columns: tuple[str, ...]
    rows: list[Row]


@router.get("/dashboard/history/{span}", include_in_schema=False)
async def history(request: Request, span: Literal["hour", "day"], model: str = ALL) -> Response:
    """What the page draws of the last hour or the last day, of one model or of all."""
    return JsonResponse(OtherRows(COLUMNS, context_of(request).dashboard.history(model).coarse(span)))


class Access(msgspec.Struct, frozen=True):
    """As whom the page is open. ``keys``: what each has done at this gateway, of an admin's page all of them, else its
    own; those without a known key are the empty name."""

    role: Literal["admin", "user"]  # a user's key has not the permission admin
    key_name: str | None
    keys: dict[str, KeyUse]


@router.get("/dashboard/access", include_in_schema=False)
async def access(request: Request) -> Response:
    """What the page may show and do."""
    caller, uses = caller_of(request), context_of(request).http_metrics.keys.uses()
    name = None if caller.key is None else caller.key.name
    if caller.tenant.is_admin:
        return JsonResponse(Access("admin", name, uses))
    return JsonResponse(Access("user", name, {each: use for each, use in uses.items() if each == name}))


async def _events(
    hub: DashboardHub, keys: ApiKeys, authorization: str | None, model: str
) -> AsyncGenerator[bytes, None]:
    seen, tenant = 0, keys.tenant(authorization)
    while tenant is not None and (event := await hub.next_event(seen, tenant, model)) is not None:
        before, tenant = tenant, keys.tenant(authorization)  # its key may have been changed or revoked meanwhile
        if tenant == before:
            seen, data = event
            yield data
