"""Models, lists, errors and ids as OpenAI's clients see them. Times are unix seconds."""

import re
import secrets
from typing import Any, Generic, Literal, TypeVar

import msgspec

T = TypeVar("T")

_WELL_FORMED = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NEW = re.compile(r"(?:file-|batch_)([0-9a-f]{12})[0-9a-f]{12}(?:-output|-error)?")


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
    """``max_model_len``: tokens of prompt and output together; ``root``: what it is under another name, of a LoRA
    adapter the folder or hub id that it is from; ``parent``: of an adapter the model that it belongs to."""

    id: str
    created: int
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "slackwater"
    root: str | None = None
    parent: str | None = None


class ModelList(msgspec.Struct, frozen=True):
    """The models that a stack serves, by each of their names."""

    data: list[Model]
    object: Literal["list"] = "list"


class DeletedFile(msgspec.Struct, frozen=True):
    """A file that is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class DeletedBatch(msgspec.Struct, frozen=True):
    """A batch of which nothing is known any more."""

    id: str
    object: Literal["batch"] = "batch"
    deleted: Literal[True] = True


class DeletedResponse(msgspec.Struct, frozen=True):
    """A response that is not stored any more."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


def new_id(prefix: str, unix_s: float) -> str:
    """``prefix`` is "file-" or "batch_". Ids sort by their time of creation, and fit into a subject and a KV key."""
    return f"{prefix}{int(unix_s * 1000):012x}{secrets.token_hex(6)}"


def is_well_formed(id: str) -> bool:
    """Whether it can be looked up at all; what clients send may hold anything."""
    return _WELL_FORMED.fullmatch(id) is not None


def created_s_of(id: str) -> int | None:
    """The unix time in an id of ``new_id``, or in that of a batch's file, which has the batch's; None for any other."""
    match = _NEW.fullmatch(id)
    return int(match[1], 16) // 1000 if match else None
