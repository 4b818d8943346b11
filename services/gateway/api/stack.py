"""/status and /executors: what ``slackwater status``, ``top``, ``drain`` and ``role`` ask through a gateway."""

from collections.abc import Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from msgspec.structs import replace
from pydantic import WithJsonSchema

from services.gateway.api.context import context_of
from services.gateway.api.intake import tenant_of
from services.gateway.http.operation import JSON, Content, JsonResponse, answers
from shared.errors import NoResponderError
from shared.openai.errors import RequestError
from shared.protocol.executors import Heartbeat
from shared.scheduling.placement.role import Role
from shared.watch.stack_status import ask_stack, set_draining, set_role

router = APIRouter(tags=["operations"])


def _object(description: str) -> Content:
    return {JSON: {"schema": {"type": "object", "description": description}}}


HEARTBEAT = _object("the executor's heartbeat, with the requests that it still has")
RoleName = Annotated[Role, WithJsonSchema({"type": "string", "enum": [role.value for role in Role]})]


@router.get("/status", **answers(_object("what slackwater status --json shows, and the figures of slackwater top")))
async def status(request: Request) -> Response:
    """Every process of the stack, its executors, its queues, and the batches that the key sees."""
    context, tenant = context_of(request), tenant_of(request)
    report = await ask_stack(context.bus, lambda: context.dashboard.view(tenant))
    names = ", ".join(model.served.name for model in context.models)  # by which clients ask for them
    return JsonResponse(replace(report, status=replace(report.status, model=names)))


@router.post("/executors/{executor_id}/drain", **answers(HEARTBEAT))
async def drain(request: Request, executor_id: str) -> Response:
    """Give an executor no new requests, online or offline; those that it has go on to their ends."""
    return await _ordered(set_draining(context_of(request).bus, executor_id, True))


@router.post("/executors/{executor_id}/undrain", **answers(HEARTBEAT))
async def undrain(request: Request, executor_id: str) -> Response:
    """Let a drained executor take requests again."""
    return await _ordered(set_draining(context_of(request).bus, executor_id, False))


@router.post("/executors/{executor_id}/role/{role}", **answers(HEARTBEAT))
async def role(request: Request, executor_id: str, role: RoleName) -> Response:
    """Put an executor into another pool: strict, relaxed or mixed. Requests that it has go on."""
    return await _ordered(set_role(context_of(request).bus, executor_id, role))


async def _ordered(order: Coroutine[Any, Any, Heartbeat]) -> Response:
    try:
        return JsonResponse(await order)
    except NoResponderError as error:
        raise RequestError(str(error), "executor_id", "not_found", 404) from error
