"""``tool_choice``: whether one of the tools has to be called, and which."""

from typing import Any

import msgspec

from shared.openai.errors import RequestError
from shared.openai.tools.definitions import Tool

REQUIRED = "required"
FREE = (None, "auto", "none")
PARAM = "tool_choice"
_NAME_SCHEMA = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
TOOL_CHOICE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"enum": ["auto", "none", REQUIRED]},
        {
            "type": "object",
            "required": ["type", "function"],
            "properties": {"type": {"enum": ["function"]}, "function": _NAME_SCHEMA},
        },
        {"type": "null"},
    ]
}


def demanded_names(tool_choice: Any, tools: list[Tool] | None) -> list[str] | None:
    """Of the functions of which one has to be called; None where the model is free. Raises RequestError."""
    if tool_choice in FREE:
        return None
    known = [tool.function.name for tool in tools or () if tool.function is not None]
    if not known:
        raise RequestError("tool_choice demands a call, and there are no tools", PARAM)
    if tool_choice == REQUIRED:
        return known
    name = _named(tool_choice)
    if name not in known:
        raise RequestError(f"tool_choice names {name!r}, which is none of the tools", PARAM)
    return [name]


def _named(tool_choice: Any) -> str:
    try:
        named = msgspec.convert(tool_choice, _NamedChoice)
    except msgspec.ValidationError as error:
        raise RequestError(
            "tool_choice must be auto, none, required or the name of a function", PARAM, "unsupported_value"
        ) from error
    return named.function.name


class _NamedFunction(msgspec.Struct):
    name: str


class _NamedChoice(msgspec.Struct, tag_field="type", tag="function"):
    function: _NamedFunction
