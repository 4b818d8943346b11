"""/v1/batches."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response
from msgspec import Meta

from services.gateway.api.context import Context, context_of
from services.gateway.api.intake import sender_of, take_request
from services.gateway.http.bodies import Anchor, ExpirySeconds
from services.gateway.http.operation import JsonResponse, answers, json_of
from services.gateway.store import page
from shared.openai.completions.requests import ENDPOINTS
from shared.openai.errors import RequestError, decode_body
from shared.openai.fields import Metadata
from shared.openai.objects import Page, new_id
from shared.protocol.batches import Batch, BatchRecord

MAX_BODY_BYTES = 64 * 1024
WINDOW_S = {"24h": 24 * 3600}

router = APIRouter(prefix="/v1/batches", tags=["batches"])


class ExpiresAfter(msgspec.Struct):
    """When the output and the error file are deleted: so long after they are complete."""

    anchor: Anchor
    seconds: ExpirySeconds


class CreateBatch(msgspec.Struct):
    """A batch to be made of an uploaded file."""

    input_file_id: str
    endpoint: Annotated[str, Meta(extra_json_schema={"enum": list(ENDPOINTS)})]
    completion_window: Annotated[str, Meta(extra_json_schema={"enum": list(WINDOW_S)})]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


_decoder = msgspec.json.Decoder(CreateBatch)


@router.post("", **answers(json_of(Batch), body=json_of(CreateBatch)))
async def create_batch(request: Request, idempotency_key: Annotated[str | None, Header()] = None) -> Response:
    """Start a batch. It runs in the time that online requests leave. A repetition with the same key is answered with
    the same batch."""
    context = context_of(request)
    take_request(request)
    await context.admission.check_offline()
    async with context.bodies.body(request, MAX_BODY_BYTES) as body:
        fields = decode_body(body, _decoder)
    await _check(context, fields)
    sender = sender_of(request, None)
    now_s = context.clock.unix_s()
    record = BatchRecord(
        id=new_id("batch_", now_s),
        endpoint=fields.endpoint,
        input_file_id=fields.input_file_id,
        completion_window=fields.completion_window,
        created_at=int(now_s),
        expires_at=int(now_s) + WINDOW_S[fields.completion_window],
        status="validating",
        metadata=fields.metadata,
        output_expires_after_s=fields.output_expires_after.seconds if fields.output_expires_after else None,
        client_id=sender.client_id,
        client_weight=sender.client_weight,
    )
    return JsonResponse(shown(await context.batches.create(record, idempotency_key or None)))


@router.get("", **answers(json_of(Page[Batch])))
async def list_batches(
    request: Request, after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> Response:
    """Batches, the newest first."""
    return JsonResponse(page([shown(record) for record in await context_of(request).batches.all()], after, limit))


@router.get("/{batch_id}", **answers(json_of(Batch)))
async def get_batch(request: Request, batch_id: str) -> Response:
    """A batch as it is now."""
    return JsonResponse(shown(await context_of(request).batches.get(batch_id)))


@router.post("/{batch_id}/cancel", **answers(json_of(Batch)))
async def cancel_batch(request: Request, batch_id: str) -> Response:
    """Stop a batch; what it has finished is kept."""
    return JsonResponse(shown(await context_of(request).batches.cancel(batch_id)))


def shown(record: BatchRecord) -> Batch:
    """What clients see of it."""
    return msgspec.convert(record, Batch, from_attributes=True)


async def _check(context: Context, fields: CreateBatch) -> None:
    if fields.endpoint not in ENDPOINTS:
        raise RequestError(f"endpoint must be one of {', '.join(ENDPOINTS)}", "endpoint")
    if fields.completion_window not in WINDOW_S:
        raise RequestError(f"completion_window must be one of {', '.join(WINDOW_S)}", "completion_window")
    file = await context.files.get(fields.input_file_id, "input_file_id")
    if file.purpose != "batch":
        message = f"the file {file.id} has the purpose {file.purpose!r}; a batch needs 'batch'"
        raise RequestError(message, "input_file_id")
