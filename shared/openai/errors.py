"""The error that a client caused, in OpenAI's terms; JSON that does not fit its struct comes back as one."""

import re
from typing import Any, TypeVar

import msgspec

from shared.errors import SlackwaterError
from shared.openai.listed_values import listed_values

T = TypeVar("T")

MAX_MESSAGE_LENGTH = 2000  # characters; messages quote what the client sent

_PATH = re.compile(r" - at (`key` in )?`\$\.?(?P<path>[^`]*?)(\[\.\.\.\])?`$")
_NOT_LISTED = "invalid enum value"
_MISSING = re.compile(r"object missing required field `(?P<field>[^`]+)`")


class RequestError(SlackwaterError):
    """A request cannot be served as it is. ``param`` names the field at fault; ``status`` is an HTTP status."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        self.message = message[:MAX_MESSAGE_LENGTH]
        super().__init__(self.message)
        self.param = param
        self.code = code
        self.status = status


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Raises RequestError."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(error, decoder.type) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the request body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise RequestError("the request body is nested too deeply") from error


def invalid(error: msgspec.ValidationError, kind: Any) -> RequestError:
    """What it says of what was to be a ``kind``, with the field's name; that of an object for its keys and values."""
    message = str(error)
    path = _PATH.search(message)
    what = _PATH.sub("", message)
    what = what[:1].lower() + what[1:]
    param = path["path"] if path and path["path"] else None
    missing = _MISSING.fullmatch(what)
    if missing:
        param = f"{param}.{missing['field']}" if param else missing["field"]
        return RequestError(f"{param} is missing", param)
    if param and what.startswith(_NOT_LISTED):
        what = f"{what}; use one of {', '.join(map(str, listed_values(kind, param)))}"
    return RequestError(f"{param or 'the request body'}: {what}", param)
