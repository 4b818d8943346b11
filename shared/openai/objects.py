"""Models, files, batches and errors as OpenAI's clients see them. Times are unix seconds."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec

T = TypeVar("T")

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]


class ErrorDetail(msgspec.Struct, frozen=True):
    """``type`` is as OpenAI's: invalid_request_error, server_error ...; ``param`` names the field at fault."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of every answer from status 400 up."""

    error: ErrorDetail


def error_body(message: str, type: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An ErrorAnswer as plain data."""
    body: dict[str, Any] = msgspec.to_builtins(ErrorAnswer(ErrorDetail(message, type, param, code)))
    return body


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list; the next one follows ``last_id``."""

    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class Model(msgspec.Struct, frozen=True):
    """``max_model_len``: tokens of prompt and output together."""

    id: str
    created: int
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "slackwater"


class ModelList(msgspec.Struct, frozen=True):
    """The one model that a stack serves."""

    data: list[Model]
    object: Literal["list"] = "list"


class FileObject(msgspec.Struct, frozen=True):
    """``purpose``: batch, or batch_output where a batch has written it. ``bytes`` is its size."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | msgspec.UnsetType = msgspec.UNSET
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"


class DeletedFile(msgspec.Struct, frozen=True):
    """A file that is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class LineError(msgspec.Struct, frozen=True):
    """What is wrong with an input file, and in which line."""

    code: str
    message: str
    line: int | None
    param: str | None


class LineErrors(msgspec.Struct, frozen=True):
    """Why a batch has failed: up to 100."""

    data: list[LineError]
    object: Literal["list"] = "list"


class RequestCounts(msgspec.Struct, frozen=True):
    """Of a batch's lines."""

    total: int
    completed: int
    failed: int


class InputTokensDetails(msgspec.Struct, frozen=True):
    """``cached_tokens`` came from the prefix cache."""

    cached_tokens: int


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """There is no reasoning apart from the output."""

    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct, frozen=True):
    """Tokens of a batch so far."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch; what has not happened yet is null."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    errors: LineErrors | None
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None
