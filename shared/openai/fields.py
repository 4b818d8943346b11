"""What OpenAI's requests have in common, and fields that are not served: refused, never silently dropped."""

import itertools
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shared.openai.errors import RequestError

FLEX = "flex"  # a single offline request
DEFAULT = "default"
ASKED = ("auto", DEFAULT, FLEX, "priority")
AskedTier = Annotated[str, Meta(extra_json_schema={"enum": list(ASKED)})]

NAME = r"^[A-Za-z0-9_-]{1,64}$(?!\n)"  # of a function or a schema; in Python alone $ is also before a last newline

# OpenAI's limits of what clients attach to their requests.
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]

# Field -> the values that ask for nothing; null always does.
COMMON_FIELDS: dict[str, tuple[Any, ...]] = {"min_tokens": (0,), "service_tier": ASKED}
CHAT_FIELDS: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}
TEXT_FIELDS: dict[str, tuple[Any, ...]] = {"echo": (False,), "suffix": ("",)}


def reject_unsupported(fields: Mapping[str, msgspec.Raw], *tables: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises RequestError for the first field that is not served with its value. An object's nulls are as absent."""
    for name, accepted in itertools.chain.from_iterable(table.items() for table in tables):
        if name in fields:
            value = msgspec.json.decode(fields[name])
            if isinstance(value, dict):
                value = {key: each for key, each in value.items() if each is not None}
            check_field(name, value, accepted)


def check_field(name: str, value: Any, accepted: tuple[Any, ...]) -> None:
    """Raises RequestError where the value is neither null nor one of those that are served."""
    if value is None or any(value == good and isinstance(value, bool) == isinstance(good, bool) for good in accepted):
        return
    allowed = " or ".join(msgspec.json.encode(good).decode() for good in accepted)
    hint = f"; leave it out or set it to {allowed}" if accepted else "; leave it out"
    raise RequestError(f"{name} is not supported with this value{hint}", name, "unsupported_value")
