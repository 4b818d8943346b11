"""/v1/batches."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from services.gateway.context import Context, context_of
from services.gateway.json_response import JsonResponse, read_body
from services.gateway.paging import page
from services.gateway.upload import check_anchor, check_expires_after
from shared.openai.errors import RequestError
from shared.openai.ids import new_id
from shared.openai.json_body import decode_body
from shared.openai.requests import ENDPOINTS
from shared.protocol.messages import BatchRecord

MAX_BODY_BYTES = 64 * 1024
WINDOW_S = {"24h": 24 * 3600}
MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY_LENGTH = 64
MAX_METADATA_VALUE_LENGTH = 512

SHOWN_FIELDS = (
    "id",
    "endpoint",
    "input_file_id",
    "completion_window",
    "created_at",
    "expires_at",
    "status",
    "metadata",
    "model",
    "output_file_id",
    "error_file_id",
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)

router = APIRouter(prefix="/v1/batches")


class _ExpiresAfter(msgspec.Struct):
    anchor: str
    seconds: int


class _CreateBatch(msgspec.Struct):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: _ExpiresAfter | None = None


_decoder = msgspec.json.Decoder(_CreateBatch)


@router.post("")
async def create_batch(request: Request) -> Response:
    context = context_of(request)
    fields = decode_body(await read_body(request, MAX_BODY_BYTES), _decoder)
    _check(fields)
    await _check_input_file(context, fields.input_file_id)
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
    )
    await context.batches.create(record)
    return JsonResponse(batch_body(record))


@router.get("")
async def list_batches(
    request: Request, after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> Response:
    return JsonResponse(page(await context_of(request).batches.all(), batch_body, after, limit))


@router.get("/{batch_id}")
async def get_batch(request: Request, batch_id: str) -> Response:
    return JsonResponse(batch_body(await context_of(request).batches.get(batch_id)))


@router.post("/{batch_id}/cancel")
async def cancel_batch(request: Request, batch_id: str) -> Response:
    context = context_of(request)
    return JsonResponse(batch_body(await context.batches.cancel(batch_id, int(context.clock.unix_s()))))


def batch_body(record: BatchRecord) -> dict[str, Any]:
    """OpenAI's Batch."""
    body: dict[str, Any] = {"object": "batch"} | {name: getattr(record, name) for name in SHOWN_FIELDS}
    body["errors"] = {"object": "list", "data": record.errors} if record.errors else None
    body["request_counts"] = {"total": record.total, "completed": record.completed, "failed": record.failed}
    body["usage"] = {
        "input_tokens": record.input_tokens,
        "input_tokens_details": {"cached_tokens": record.cached_tokens},
        "output_tokens": record.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": record.input_tokens + record.output_tokens,
    }
    return body


def _check(fields: _CreateBatch) -> None:
    if fields.endpoint not in ENDPOINTS:
        raise RequestError(f"endpoint must be one of {', '.join(ENDPOINTS)}", "endpoint")
    if fields.completion_window not in WINDOW_S:
        raise RequestError(f"completion_window must be one of {', '.join(WINDOW_S)}", "completion_window")
    if fields.output_expires_after is not None:
        check_anchor(fields.output_expires_after.anchor, "output_expires_after")
        check_expires_after(fields.output_expires_after.seconds, "output_expires_after")
    _check_metadata(fields.metadata or {})


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > MAX_METADATA_PAIRS:
        raise RequestError(f"metadata has more than {MAX_METADATA_PAIRS} pairs", "metadata")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY_LENGTH:
            raise RequestError(f"a metadata key is longer than {MAX_METADATA_KEY_LENGTH} characters", "metadata")
        if len(value) > MAX_METADATA_VALUE_LENGTH:
            raise RequestError(
                f"metadata.{key} is longer than {MAX_METADATA_VALUE_LENGTH} characters", f"metadata.{key}"
            )


async def _check_input_file(context: Context, file_id: str) -> None:
    record = await context.files.get(file_id, "input_file_id")
    if record.purpose != "batch":
        raise RequestError(
            f"the file {file_id} has the purpose {record.purpose!r}; a batch needs 'batch'", "input_file_id"
        )
