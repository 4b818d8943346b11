"""/docs: the API in words, in one page, made of /openapi.json."""

import functools

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from services.gateway.access.api_keys import DOCS
from services.gateway.api.reference import reference_of
from services.gateway.http.html_page import POLICY, html_page

HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}

router = APIRouter()


@router.get(DOCS, include_in_schema=False)
async def docs(request: Request) -> Response:
    """Needs nothing that is not in it."""
    return HTMLResponse(_page(request.app), headers=HEADERS)


@functools.lru_cache(maxsize=1)
def _page(app: FastAPI) -> str:
    return html_page("Slackwater: HTTP API", "\n".join(reference_of(app.openapi())))
