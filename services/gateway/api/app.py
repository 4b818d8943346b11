"""The ASGI application: routes, errors, and what surrounds them."""

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from services.gateway.access.key_check import KeyCheck
from services.gateway.api import batches, completions, dashboard, files, models, operations, responses, unserved
from services.gateway.api.context import Context
from services.gateway.api.openapi import DescribedApp
from services.gateway.http.answers import Answers
from services.gateway.http.errors import install_error_handlers

EXPOSED_HEADERS = (
    "x-request-id",
    "retry-after",
    *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
)


def create_app(context: Context) -> ASGIApp:
    """All endpoints over one context."""
    app = make_routes(context.keys.required)
    app.state.context = context
    install_error_handlers(app)
    app.add_middleware(KeyCheck, keys=context.keys)
    if cors_origins := context.settings.allowed_origins():
        app.add_middleware(
            CORSMiddleware,
            allow_origins=cors_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
        )
    return Answers(app, context.http_metrics)


def make_routes(keys_required: bool) -> DescribedApp:
    """All endpoints, without what they work with."""
    app = DescribedApp(keys_required)
    for module in (completions, responses, models, files, batches, operations, unserved, dashboard):
        app.include_router(module.router)
    app.mount(dashboard.STATIC_PATH, dashboard.PageFiles(directory=dashboard.FOLDER))
    return app
