"""Decode a client's JSON into a struct; what is wrong comes back as a RequestError that names the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from shared.openai.errors import RequestError

T = TypeVar("T")

_PATH = re.compile(r" - at (`key` in )?`\$\.?(?P<path>[^`]*?)(\[\.\.\.\])?`$")
_MISSING = re.compile(r"object missing required field `(?P<field>[^`]+)`")


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Raises RequestError."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the request body is not valid JSON: {error}") from error


def invalid(error: msgspec.ValidationError) -> RequestError:
    """What it says, with the field's name; that of an object for its keys and values."""
    message = str(error)
    path = _PATH.search(message)
    what = _PATH.sub("", message)
    what = what[:1].lower() + what[1:]
    param = path["path"] if path and path["path"] else None
    missing = _MISSING.fullmatch(what)
    if missing:
        param = f"{param}.{missing['field']}" if param else missing["field"]
        return RequestError(f"{param} is missing", param)
    return RequestError(f"{param or 'the request body'}: {what}", param)
