"""Fields of OpenAI's API that would change the answer and are not served: refused, never silently dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shared.openai.errors import RequestError
from shared.openai.service_tier import ASKED

# Field -> the values that ask for nothing; null always does.
COMMON_FIELDS: dict[str, tuple[Any, ...]] = {
    "min_tokens": (0,),
    "service_tier": ASKED,
}
CHAT_FIELDS: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}
TEXT_FIELDS: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "suffix": ("",),
}


def reject_unsupported(fields: Mapping[str, msgspec.Raw], chat: bool) -> None:
    """Raises RequestError for the first field that is not served with its value."""
    for known in (COMMON_FIELDS, CHAT_FIELDS if chat else TEXT_FIELDS):
        for name, accepted in known.items():
            if name in fields:
                check_field(name, msgspec.json.decode(fields[name]), accepted)


def check_field(name: str, value: Any, accepted: tuple[Any, ...]) -> None:
    """Raises RequestError where the value is neither null nor one of those that are served."""
    if value is None or any(value == good and isinstance(value, bool) == isinstance(good, bool) for good in accepted):
        return
    allowed = " or ".join(msgspec.json.encode(good).decode() for good in accepted)
    hint = f"; leave it out or set it to {allowed}" if accepted else "; leave it out"
    raise RequestError(f"{name} is not supported with this value{hint}", name, "unsupported_value")
