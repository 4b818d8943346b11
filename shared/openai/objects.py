"""Models, lists and errors as OpenAI's clients see them. Times are unix seconds."""

from typing import Any, Generic, Literal, TypeVar

import msgspec

T = TypeVar("T")


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


class DeletedFile(msgspec.Struct, frozen=True):
    """A file that is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True
