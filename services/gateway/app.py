"""The ASGI application: routes, errors, and a count of every answer."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway import batches, completions, files, models, operations
from services.gateway.context import Context, set_context
from services.gateway.errors import install_error_handlers
from services.gateway.metrics import HttpMetrics


def create_app(context: Context) -> FastAPI:
    """All endpoints over one context."""
    app = FastAPI(title="Slackwater", docs_url=None, redoc_url=None, openapi_url=None)
    set_context(app, context)
    for module in (completions, models, files, batches, operations):
        app.include_router(module.router)
    install_error_handlers(app)
    app.add_middleware(AnswerCounter, metrics=context.http_metrics)
    return app


class AnswerCounter:
    """Counts answers by method, route and status, when their headers go out."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "unknown")
                self._metrics.answered(scope["method"], route, message["status"])
            await send(message)

        await self._app(scope, receive, counted)
