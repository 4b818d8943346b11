"""/v1/files."""

from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from services.gateway.api.context import context_of
from services.gateway.api.intake import take_request
from services.gateway.http.bodies import UPLOAD_FORM, read_upload
from services.gateway.http.operation import BINARY, JsonResponse, answers, json_of
from services.gateway.store import page
from shared.errors import NotFoundOnBusError
from shared.openai.errors import RequestError
from shared.openai.objects import DeletedFile, Page
from shared.protocol.batches import FileObject

router = APIRouter(prefix="/v1/files", tags=["files"])


@router.post("", **answers(json_of(FileObject), body=UPLOAD_FORM))
async def create_file(request: Request) -> Response:
    """Upload a batch's input: JSON lines, at most 200 MB."""
    context = context_of(request)
    take_request(request)
    await context.admission.check_offline()
    async with read_upload(request, context.bodies.timeout_s) as upload:
        record = await context.files.create(upload.filename, upload.contents, upload.expires_after_s)
    return JsonResponse(record)


@router.get("", **answers(json_of(Page[FileObject])))
async def list_files(
    request: Request,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> Response:
    """Files, the newest first."""
    records = await context_of(request).files.all()
    if purpose is not None:
        records = [record for record in records if record.purpose == purpose]
    return JsonResponse(page(records, after, limit, newest_first=order == "desc"))


@router.get("/{file_id}", **answers(json_of(FileObject)))
async def get_file(request: Request, file_id: str) -> Response:
    """What is known of a file."""
    return JsonResponse(await context_of(request).files.get(file_id))


@router.delete("/{file_id}", **answers(json_of(DeletedFile)))
async def delete_file(request: Request, file_id: str) -> Response:
    """Delete a file at once."""
    await context_of(request).files.delete(file_id)
    return JsonResponse(DeletedFile(file_id))


@router.get("/{file_id}/content", **answers({"application/octet-stream": {"schema": BINARY}}))
async def get_file_content(request: Request, file_id: str) -> Response:
    """The raw bytes, streamed. The first piece is read before the answer starts, so that a 404 is still possible."""
    files = context_of(request).files
    record = await files.get(file_id)
    chunks = files.chunks(record)
    try:
        first = await anext(chunks, b"")
    except NotFoundOnBusError as error:
        raise RequestError(f"no such file: {file_id}", "file_id", "not_found", 404) from error
    headers = {"Content-Length": str(record.bytes)}
    return StreamingResponse(_rejoin(first, chunks), media_type="application/octet-stream", headers=headers)


async def _rejoin(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk
