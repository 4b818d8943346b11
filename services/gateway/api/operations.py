"""/health, /ping, /ready, /version and /metrics."""

from typing import Literal

import msgspec
from fastapi import APIRouter, Request, Response

from services.gateway.api.context import context_of
from services.gateway.http.errors import RETRY_AFTER_S
from services.gateway.http.operation import JsonResponse, answers, json_of
from shared.version import version as slackwater_version

router = APIRouter(tags=["operations"])


class Health(msgspec.Struct, frozen=True):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Version(msgspec.Struct, frozen=True):
    """As of the installed package, else of the repository."""

    version: str


class Readiness(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a completion can be served, and what is missing where it cannot. ``unserved``: of several models those
    that cannot, and why."""

    status: Literal["ready", "not ready"]
    reason: str | None = None
    unserved: dict[str, str] = {}


@router.get("/health", **answers(json_of(Health)))
async def health() -> Response:
    """The process is up."""
    return JsonResponse(Health())


@router.get("/ping", name="ping", **answers(json_of(Health)))
@router.post("/ping", name="post_ping", **answers(json_of(Health)))
async def ping() -> Response:
    """As /health, under the name that SageMaker asks for."""
    return JsonResponse(Health())


@router.get("/version", **answers(json_of(Version)))
async def version() -> Response:
    """Of Slackwater."""
    return JsonResponse(Version(slackwater_version()))


@router.get("/ready", **answers(json_of(Readiness), errors={503: json_of(Readiness)}))
async def ready(request: Request) -> Response:
    """200 where a completion of some model can be served now, else 503 and why."""
    context = context_of(request)
    missing, unserved = context.not_ready_because(), context.models.unserved()
    if missing is None:
        return JsonResponse(Readiness("ready", unserved=unserved))
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return JsonResponse(Readiness("not ready", missing, unserved), status_code=503, headers=headers)


@router.get("/metrics", **answers({"text/plain": {"schema": {"type": "string", "description": "metrics, one a line"}}}))
async def metrics(request: Request) -> Response:
    """Prometheus's text format."""
    telemetry = context_of(request).telemetry
    return Response(await telemetry.render(), media_type=telemetry.content_type)
