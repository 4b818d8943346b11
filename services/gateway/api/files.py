"""/v1/files."""

from collections.abc import AsyncIterator
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response

from services.gateway.api.context import context_of
from services.gateway.api.intake import caller_of, take_request, tenant_of
from services.gateway.http.bodies import UPLOAD_FORM, Upload, read_upload
from services.gateway.http.event_source import Streamed
from services.gateway.http.operation import BINARY, JsonResponse, answers, json_of
from services.gateway.store import page
from shared.errors import NotFoundOnBusError
from shared.openai.errors import RequestError
from shared.openai.objects import DeletedFile, Page, new_id
from shared.protocol.offline.batches import FileObject, FileRecord

router = APIRouter(prefix="/v1/files", tags=["files"])


@router.post("", **answers(json_of(FileObject), body=UPLOAD_FORM))
async def create_file(request: Request) -> Response:
    """Upload a batch's input: JSON lines, at most 200 MB."""
    context = context_of(request)
    take_request(request)
    await context.models.check_offline()
    key = caller_of(request).key
    await context.quotas.check_bytes_left(key)
    async with read_upload(request, context.bodies.timeout_s) as upload:
        record = _record(upload, tenant_of(request).owner, context.clock.unix_s())
        async with context.quotas.storing(key, record):
            await context.files.create(record, upload.contents)
    return JsonResponse(shown(record))


@router.get("", **answers(json_of(Page[FileObject])))
async def list_files(
    request: Request,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> Response:
    """Files, the newest first: those of the key that asks, or of its organization."""
    files = [shown(record) for record in await context_of(request).files.seen_by(tenant_of(request))]
    if purpose is not None:
        files = [file for file in files if file.purpose == purpose]
    return JsonResponse(page(files, after, limit, newest_first=order == "desc"))


@router.get("/{file_id}", **answers(json_of(FileObject)))
async def get_file(request: Request, file_id: str) -> Response:
    """What is known of a file."""
    return JsonResponse(shown(await context_of(request).files.get(file_id, tenant_of(request))))


@router.delete("/{file_id}", **answers(json_of(DeletedFile)))
async def delete_file(request: Request, file_id: str) -> Response:
    """Delete a file at once."""
    await context_of(request).files.delete(file_id, tenant_of(request))
    return JsonResponse(DeletedFile(file_id))


@router.get("/{file_id}/content", **answers({"application/octet-stream": {"schema": BINARY}}))
async def get_file_content(request: Request, file_id: str) -> Response:
    """The raw bytes, streamed. The first piece is read before the answer starts, so that a 404 is still possible."""
    files = context_of(request).files
    record = await files.get(file_id, tenant_of(request))
    chunks = files.chunks(record)
    try:
        first = await anext(chunks, b"")
    except NotFoundOnBusError as error:
        raise RequestError(f"no such file: {file_id}", "file_id", "not_found", 404) from error
    headers = {"Content-Length": str(record.bytes)}
    return Streamed(_rejoin(first, chunks), media_type="application/octet-stream", headers=headers)


def shown(record: FileRecord) -> FileObject:
    """What clients see of it."""
    return msgspec.convert(record, FileObject, from_attributes=True)


def _record(upload: Upload, owner: str, now_s: float) -> FileRecord:
    """Of a batch's input that comes now."""
    return FileRecord(
        id=new_id("file-", now_s),
        bytes=upload.num_bytes,
        created_at=int(now_s),
        filename=upload.filename,
        purpose="batch",
        expires_at=None if upload.expires_after_s is None else int(now_s) + upload.expires_after_s,
        owner=owner,
    )


async def _rejoin(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk
