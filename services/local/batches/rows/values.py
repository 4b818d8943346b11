"""Values of rows as text."""

from typing import Any

import msgspec


def text_of(value: Any) -> str:
    """A text as it is, nothing where there is none, and of all else what JSON has."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    plain = msgspec.to_builtins(value)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()
