"""/v1/batches."""

import contextlib
from functools import partial
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response
from msgspec import Meta

from services.gateway.access.admission import online_first
from services.gateway.access.api_keys import INSUFFICIENT_PERMISSIONS, missing_permission
from services.gateway.access.permissions import needed_permission
from services.gateway.api.context import Context, context_of
from services.gateway.api.intake import caller_of, check_budget, sender_of, served_for, take_request, tenant_of
from services.gateway.batch_model import model_of_first_line
from services.gateway.http.bodies import Anchor, ExpirySeconds
from services.gateway.http.errors import Refusal
from services.gateway.http.operation import JsonResponse, answers, json_of
from services.gateway.models import GatewayModel
from services.gateway.settings import kv_owner
from services.gateway.store import page
from services.gateway.tenants import Tenant
from shared.openai.batch_window import WINDOW_PATTERN, window_s
from shared.openai.endpoints import BATCH_ENDPOINTS
from shared.openai.errors import RequestError, decode_body
from shared.openai.fields import Metadata
from shared.openai.objects import DeletedBatch, Page, new_id
from shared.protocol.access.api_keys import Permission
from shared.protocol.offline.batches import Batch, BatchRecord, FileRecord

MAX_BODY_BYTES = 64 * 1024

router = APIRouter(prefix="/v1/batches", tags=["batches"])


class ExpiresAfter(msgspec.Struct):
    """When the output and the error file are deleted: so long after they are complete."""

    anchor: Anchor
    seconds: ExpirySeconds


class CreateBatch(msgspec.Struct):
    """A batch to be made of an uploaded file. ``completion_window``: hours or days, from 1h to 30d."""

    input_file_id: str
    endpoint: Annotated[str, Meta(extra_json_schema={"enum": list(BATCH_ENDPOINTS)})]
    completion_window: Annotated[str, Meta(extra_json_schema={"pattern": WINDOW_PATTERN})]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


_decoder = msgspec.json.Decoder(CreateBatch)


@router.post("", **answers(json_of(Batch), body=json_of(CreateBatch)))
async def create_batch(request: Request, idempotency_key: Annotated[str | None, Header()] = None) -> Response:
    """Start a batch. It runs in the time that online requests leave. A repetition with the same key is answered with
    the same batch."""
    context, tenant = context_of(request), tenant_of(request)
    take_request(request)
    async with context.bodies.body(request, MAX_BODY_BYTES) as body:
        fields = decode_body(body, _decoder)
    sender = sender_of(request, None)
    now_s = context.clock.unix_s()
    asked = BatchRecord(
        id=new_id("batch_", now_s),
        endpoint=fields.endpoint,
        input_file_id=fields.input_file_id,
        completion_window=fields.completion_window,
        created_at=int(now_s),
        expires_at=int(now_s) + window_s(fields.completion_window),
        status="validating",
        metadata=fields.metadata,
        output_expires_after_s=fields.output_expires_after.seconds if fields.output_expires_after else None,
        client_id=sender.client_id,
        client_weight=sender.client_weight,
        owner=tenant.owner,
        kv_owner=kv_owner(context.settings, tenant.owner),
        traceparent=sender.span.traceparent,
    )
    key = idempotency_key or None
    found = None if key is None else await context.batches.repeated(asked, key)
    if found is None:
        try:
            found = await _new_batch(request, fields, asked, key)
        except (RequestError, Refusal):  # a repetition beside this one may have made it by now, and used the room
            found = None if key is None else await context.batches.repeated(asked, key)
            if found is None:
                raise
    return JsonResponse(shown(found))


@router.get("", **answers(json_of(Page[Batch])))
async def list_batches(
    request: Request, after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> Response:
    """Batches, the newest first: those of the key that asks, or of its organization."""
    records = await context_of(request).batches.seen_by(tenant_of(request))
    return JsonResponse(page([shown(record) for record in records], after, limit))


@router.get("/{batch_id}", **answers(json_of(Batch)))
async def get_batch(request: Request, batch_id: str) -> Response:
    """A batch as it is now."""
    return JsonResponse(shown(await context_of(request).batches.get(batch_id, tenant_of(request))))


@router.post("/{batch_id}/cancel", **answers(json_of(Batch)))
async def cancel_batch(request: Request, batch_id: str) -> Response:
    """Stop a batch; what it has finished is kept."""
    return JsonResponse(shown(await context_of(request).batches.cancel(batch_id, tenant_of(request))))


@router.delete("/{batch_id}", **answers(json_of(DeletedBatch)))
async def delete_batch(request: Request, batch_id: str, files: bool = False) -> Response:
    """Forget an ended batch; with files=true its input, output and error file are deleted too."""
    context, tenant = context_of(request), tenant_of(request)
    if files:
        _check_permission(request, "files", "files")
    record = await context.batches.delete(batch_id, tenant)
    for file_id in (record.output_file_id, record.error_file_id) if files else ():
        await _delete_file(context, tenant, file_id)
    if files and not await context.batches.is_reading(record.input_file_id):
        await _delete_file(context, tenant, record.input_file_id)
    return JsonResponse(DeletedBatch(batch_id))


def shown(record: BatchRecord) -> Batch:
    """What clients see of it."""
    return msgspec.convert(record, Batch, from_attributes=True)


async def _new_batch(request: Request, fields: CreateBatch, asked: BatchRecord, key: str | None) -> BatchRecord:
    """Where nothing is in its way. Raises RequestError, Refusal and BusError."""
    context = context_of(request)
    await context.models.check_offline()
    model, adapter = await _model_of(context, await _checked_input(context, fields, tenant_of(request)))
    _check_key(request, fields.endpoint, model, adapter)
    record = msgspec.structs.replace(asked, model_name=model.name, adapter=adapter)
    return await context.batches.create(record, key, partial(context.quotas.opening, caller_of(request).key))


def _check_key(request: Request, endpoint: str, model: GatewayModel, adapter: str) -> None:
    """What its caller may not do request by request it may not do with a batch. Raises RequestError and Refusal."""
    _check_permission(request, needed_permission(endpoint), "endpoint")
    served = served_for(request, model).only(adapter)
    served.check(next(iter(served.names), served.name))
    check_budget(request, model, adapter)


def _check_permission(request: Request, permission: Permission | None, param: str) -> None:
    """Beside that which the path needs. Raises RequestError (403)."""
    key = caller_of(request).key
    if key is not None and permission is not None and not key.permits(permission):
        raise RequestError(missing_permission(key, permission), param, INSUFFICIENT_PERMISSIONS, 403)


async def _delete_file(context: Context, tenant: Tenant, file_id: str | None) -> None:
    """Where it is there, and not another's."""
    with contextlib.suppress(RequestError):
        await context.files.delete(file_id or "", tenant)


async def _checked_input(context: Context, fields: CreateBatch, tenant: Tenant) -> FileRecord:
    """Raises RequestError."""
    if fields.endpoint not in BATCH_ENDPOINTS:
        raise RequestError(f"endpoint must be one of {', '.join(BATCH_ENDPOINTS)}", "endpoint")
    window_s(fields.completion_window)
    file = await context.files.get(fields.input_file_id, tenant, "input_file_id")
    if file.purpose != "batch":
        message = f"the file {file.id} has the purpose {file.purpose!r}; a batch needs 'batch'"
        raise RequestError(message, "input_file_id")
    return file


async def _model_of(context: Context, file: FileRecord) -> tuple[GatewayModel, str]:
    """With the adapter of it that is asked for, "" for none. The default where the file names none that there is: it
    fails the batch, and says why. Raises Refusal and BusError."""
    if len(context.models) == 1 and not context.models.default.served.adapters:
        return context.models.default, ""
    name = await model_of_first_line(context.files.chunks(file))
    model = context.models.of(name)
    if model.admission.is_busy:
        raise online_first()
    return model, name if name in model.served.adapters else ""
