"""/health, /ready and /metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from services.gateway.context import Context, context_of
from services.gateway.errors import RETRY_AFTER_S
from services.gateway.json_response import JsonResponse

router = APIRouter()


@router.get("/health")
async def health() -> Response:
    """The process is up."""
    return JsonResponse({"status": "ok"})


@router.get("/ready")
async def ready(request: Request) -> Response:
    """200 where a completion can be served now, else 503 and why."""
    missing = not_ready_because(context_of(request))
    if missing is None:
        return JsonResponse({"status": "ready"})
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return JsonResponse({"status": "not ready", "reason": missing}, status_code=503, headers=headers)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus's text format."""
    telemetry = context_of(request).telemetry
    return Response(telemetry.render(), media_type=telemetry.content_type)


def not_ready_because(context: Context) -> str | None:
    """None where all is there."""
    if not context.bus.is_connected:
        return "the connection to the bus is lost"
    if not context.registry.available():
        return f"no executor of {context.model.name} is alive"
    return None
