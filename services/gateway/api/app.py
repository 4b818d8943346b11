"""The ASGI application: routes, errors, what surrounds them, and /openapi.json, which describes them."""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Scope

from services.gateway.access.api_keys import OPEN_PATHS, KeyCheck
from services.gateway.access.web_pages import WebPageCheck
from services.gateway.api import (
    batches,
    completions,
    dashboard,
    docs,
    embeddings,
    files,
    operations,
    responses,
    stack,
    tokens,
    unserved,
    usage,
)
from services.gateway.api.context import Context
from services.gateway.http.answers import Answers
from services.gateway.http.errors import CutAnswers, install_error_handlers
from services.gateway.http.head_requests import HeadRequests
from services.gateway.http.operation import components
from services.gateway.http.unknown_urls import routes_at
from shared.settings.setting import listed
from shared.version import version

KEY_SCHEME = "api_key"
EXPOSED_HEADERS = (
    "x-request-id",
    "retry-after",
    "x-should-retry",
    *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
)


class DescribedApp(FastAPI):
    """FastAPI whose document names our structs. ``keys_required``: whether clients need an API key."""

    def __init__(self, keys_required: bool) -> None:
        super().__init__(
            title="Slackwater",
            description="OpenAI's API for completions, responses, embeddings, files and batches, as served here.",
            version=version(),
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,  # behind a proxy that speaks TLS, to what does not: with the key and the prompt
            generate_unique_id_function=attrgetter("name"),
        )
        self._keys_required = keys_required

    def openapi(self) -> dict[str, Any]:
        """Made when it is first asked for."""
        if self.openapi_schema is None:
            document = super().openapi()
            scheme = {"type": "http", "scheme": "bearer", "description": "A key of slackwater key create."}
            document["components"] = {"schemas": components(), "securitySchemes": {KEY_SCHEME: scheme}}
            document["security"] = [{KEY_SCHEME: []}] if self._keys_required else [{KEY_SCHEME: []}, {}]
            for path in OPEN_PATHS:
                for operation in document["paths"][path].values():
                    operation["security"] = []
            self.openapi_schema = document
        return self.openapi_schema


def create_app(context: Context) -> ASGIApp:
    """All endpoints over one context."""
    app = make_routes(context.keys.required)
    app.state.context = context
    install_error_handlers(app)
    web_pages, serves = WebPageCheck(context.settings), partial(_serves, app)
    app.add_middleware(KeyCheck, keys=context.keys, web_pages=web_pages, clock=context.clock, serves=serves)
    readable = _readable(CutAnswers(app), listed(context.settings.cors_origins))
    return HeadRequests(Answers(readable, context.http_metrics, context.tracing, context.clock))


def _serves(app: FastAPI, scope: Scope) -> bool:
    """Whether there is something at its path, by whatever method."""
    found = routes_at(app, scope, scope["path"])
    return any(getattr(route, "endpoint", None) is not unserved.refuse for _, route in found)


def _readable(app: ASGIApp, cors_origins: Sequence[str]) -> ASGIApp:
    """By web pages of these origins, whatever the answer is. FastAPI makes that of an unforeseen error outside of all
    that was added to it."""
    if not cors_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=cors_origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=EXPOSED_HEADERS,
    )


def make_routes(keys_required: bool) -> DescribedApp:
    """All endpoints, without what they work with."""
    app = DescribedApp(keys_required)
    pages = (stack, usage, unserved, docs, dashboard)
    modules = (completions, responses, embeddings, tokens, files, batches, operations, *pages)
    routers = [module.router for module in modules]
    app.state.routes = [*app.routes, *chain.from_iterable(router.routes for router in routers)]
    for router in routers:
        app.include_router(router)
    return app
