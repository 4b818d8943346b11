"""Bodies on their way in: JSON, bounded one by one, all together and in time; uploads, spooled to disk."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Annotated, BinaryIO, Literal

import msgspec
from fastapi import Request
from msgspec import UNSET, Meta, UnsetType
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from services.gateway.http.errors import Refusal
from services.gateway.http.operation import BINARY, JSON, Content
from shared.openai.errors import RequestError, invalid

RETRY_S = 5.0
SMALL_BYTES = 64 * 1024  # a body up to this size always passes: nobody is kept out by those who send large ones
UPLOAD_STEP_BYTES = 64 * 1024  # that have to come in time, again and again
MAX_FILE_BYTES = 200 * 1024 * 1024
MAX_FORM_BYTES = MAX_FILE_BYTES + 64 * 1024  # with the form's other fields and boundaries
MAX_FILENAME_LENGTH = 255
MAX_FIELDS, MAX_FIELD_BYTES = 16, 4 * 1024  # of a form, beside the file
IDENTITY = "identity"  # of what is packed in no way

Anchor = Literal["created_at"]
ExpirySeconds = Annotated[int, Meta(ge=3600, le=30 * 24 * 3600)]


@dataclass(slots=True)
class BodyIntake:
    """Counts the bytes of all bodies that are being read or worked on. Too many, and large ones are refused."""

    max_bytes: int
    timeout_s: float
    num_bytes: int = 0

    @contextlib.asynccontextmanager
    async def body(self, request: Request, limit: int) -> AsyncIterator[bytes]:
        """The whole body, at most ``limit`` bytes; it counts until it is left. Raises RequestError (415; 413, before
        reading where its length is told; 408) and Refusal (503)."""
        _require_json(request.headers.get("content-type"))
        _require_plain(request.headers.get("content-encoding"))
        if int(request.headers.get("content-length", 0)) > limit:
            raise _body_too_large(limit)
        body = bytearray()
        try:
            await self._read(request, limit, body)
            yield bytes(body)
        finally:
            self.num_bytes -= len(body)

    async def _read(self, request: Request, limit: int, body: bytearray) -> None:
        try:
            async with asyncio.timeout(self.timeout_s):
                async for chunk in request.stream():
                    body += chunk
                    self.num_bytes += len(chunk)
                    if len(body) > limit:
                        raise _body_too_large(limit)
                    if len(body) > SMALL_BYTES and self.num_bytes > self.max_bytes:
                        message = "too many large requests are coming in; try again later"
                        raise Refusal("bodies", message, RETRY_S)
        except TimeoutError as error:
            message = f"the request body did not come within {self.timeout_s:g} s"
            raise RequestError(message, None, "request_timeout", 408) from error


def _require_json(content_type: str | None) -> None:
    """A browser asks before it sends JSON for a page of another origin; other types it sends unasked."""
    if (content_type or "").partition(";")[0].strip().lower() != JSON:
        sent = f"not {content_type}" if content_type else "which is missing"
        message = f"send the body with the header Content-Type: {JSON}, {sent}; curl -d needs -H for it"
        raise RequestError(message, None, "unsupported_media_type", 415)


def _require_plain(content_encoding: str | None) -> None:
    """A small body that is packed may be of any size."""
    coding = (content_encoding or IDENTITY).strip().lower()
    if coding != IDENTITY:
        message = f"a body with Content-Encoding: {coding} is not read; send it uncompressed"
        raise RequestError(message, None, "unsupported_media_type", 415)


class UploadForm(msgspec.Struct, rename={"anchor": "expires_after[anchor]", "seconds": "expires_after[seconds]"}):
    """What comes with an uploaded file."""

    purpose: Literal["batch"]
    anchor: Anchor | UnsetType = UNSET
    seconds: ExpirySeconds | UnsetType = UNSET


_fields = msgspec.json.schema(UploadForm)["$defs"]["UploadForm"]
_properties, _required = {"file": BINARY, **_fields["properties"]}, ["file", *_fields["required"]]
UPLOAD_FORM: Content = {
    "multipart/form-data": {"schema": {"type": "object", "required": _required, "properties": _properties}}
}


@dataclass(frozen=True, slots=True)
class Upload:
    """A valid upload; ``contents`` is open, at its beginning, for as long as the context lasts."""

    filename: str
    contents: BinaryIO
    num_bytes: int
    expires_after_s: int | None


class UploadParser(MultiPartParser):
    """Of as many uploads at a time as there may be connections, memory has little of each."""

    spool_max_size = SMALL_BYTES


@contextlib.asynccontextmanager
async def read_upload(request: Request, idle_s: float) -> AsyncIterator[Upload]:
    """Raises RequestError, with status 413 as soon as too much has come, 408 where no 64 KiB have in ``idle_s``, and
    Refusal where it cannot be kept meanwhile."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise RequestError("send the file as multipart/form-data", "file")
    _require_plain(request.headers.get("content-encoding"))
    if int(request.headers.get("content-length", 0)) > MAX_FORM_BYTES:
        raise _file_too_large()
    bounds = {"max_files": 1, "max_fields": MAX_FIELDS, "max_part_size": MAX_FIELD_BYTES}
    parser = UploadParser(request.headers, _limited(request, idle_s), **bounds)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise RequestError(f"the form cannot be read: {error.message}", "file") from error
    except OSError as error:  # of a temporary file: no room for it, too many open ones
        raise Refusal(
            "temporary_files", f"no file can be taken now ({error.strerror}); try again later", RETRY_S
        ) from error
    try:
        yield _upload(form)
    finally:
        await form.close()


async def _limited(request: Request, idle_s: float) -> AsyncGenerator[bytes, None]:
    size, wanted_size, chunks = 0, 0, aiter(request.stream())
    now_s = asyncio.get_running_loop().time
    until_s = now_s() + idle_s
    while True:
        try:
            async with asyncio.timeout_at(until_s):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            message = f"next to nothing more of the form has come for {idle_s:g} s"
            raise RequestError(message, "file", "request_timeout", 408) from error
        size += len(chunk)
        if size >= wanted_size:
            wanted_size, until_s = size + UPLOAD_STEP_BYTES, now_s() + idle_s
        if size > MAX_FORM_BYTES:
            raise _file_too_large()
        yield chunk


def _upload(form: FormData) -> Upload:
    for name in form:
        if len(form.getlist(name)) > 1:
            raise RequestError(f"{name} is given more than once", name)
    if form.get("purpose") not in (None, "batch"):
        raise RequestError(f"the purpose {form['purpose']!r} is not supported; use 'batch'", "purpose")
    try:
        fields = msgspec.convert({name: form[name] for name in form if name != "file"}, UploadForm, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(error, UploadForm) from error
    if fields.anchor is UNSET and fields.seconds is not UNSET:
        raise RequestError("expires_after[anchor] is missing", "expires_after[anchor]")
    if fields.seconds is UNSET and fields.anchor is not UNSET:
        raise RequestError("expires_after[seconds] is missing", "expires_after[seconds]")
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise RequestError("file is missing", "file")
    if not file.size:
        raise RequestError("file is empty", "file", "empty_file")
    if file.size > MAX_FILE_BYTES:
        raise _file_too_large()
    filename = file.filename or ""
    if not 0 < len(filename) <= MAX_FILENAME_LENGTH:
        raise RequestError(f"the file's name must have 1 to {MAX_FILENAME_LENGTH} characters", "file")
    return Upload(filename, file.file, file.size, None if fields.seconds is UNSET else fields.seconds)


def _body_too_large(limit: int) -> RequestError:
    return RequestError(f"the request body is larger than {limit} bytes", None, "request_too_large", 413)


def _file_too_large() -> RequestError:
    message = f"the file is larger than {MAX_FILE_BYTES // 1024**2} MB; split it"
    return RequestError(message, "file", "file_too_large", 413)
