"""/status and /executors: what ``slackwater status``, ``top`` and ``drain`` ask through a gateway."""

from fastapi import APIRouter, Request, Response

from services.gateway.api.context import context_of
from services.gateway.http.operation import JSON, Content, JsonResponse, answers
from shared.errors import NoResponderError
from shared.openai.errors import RequestError
from shared.watch.stack_status import ask_stack, set_draining

router = APIRouter(tags=["operations"])


def _object(description: str) -> Content:
    return {JSON: {"schema": {"type": "object", "description": description}}}


HEARTBEAT = _object("the executor's heartbeat, with the requests that it still has")


@router.get("/status", **answers(_object("what slackwater status --json shows, and the figures of slackwater top")))
async def status(request: Request) -> Response:
    """Every process of the stack, its executors, its queues and its batches."""
    context = context_of(request)
    return JsonResponse(await ask_stack(context.bus, context.dashboard.view))


@router.post("/executors/{executor_id}/drain", **answers(HEARTBEAT))
async def drain(request: Request, executor_id: str) -> Response:
    """Give an executor no new requests, online or offline; those that it has go on to their ends."""
    return await _set_draining(request, executor_id, True)


@router.post("/executors/{executor_id}/undrain", **answers(HEARTBEAT))
async def undrain(request: Request, executor_id: str) -> Response:
    """Let a drained executor take requests again."""
    return await _set_draining(request, executor_id, False)


async def _set_draining(request: Request, executor_id: str, draining: bool) -> Response:
    try:
        return JsonResponse(await set_draining(context_of(request).bus, executor_id, draining))
    except NoResponderError as error:
        raise RequestError(str(error), "executor_id", "not_found", 404) from error
