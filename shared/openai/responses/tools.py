"""The tools of a response: those of a chat, in a flat form."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shared.openai.errors import RequestError
from shared.openai.fields import NAME, check_depth
from shared.openai.tools.definitions import not_a_function, tool_choice_schema

TOOL_CHOICE_SCHEMA = tool_choice_schema({"name": {"type": "string"}})


class FunctionTool(msgspec.Struct):
    """A function that the model may call; other tools are refused. ``parameters`` and ``strict`` as of a chat's."""

    type: str
    name: Annotated[str, Meta(pattern=NAME)] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def chat_tools(tools: list[FunctionTool]) -> list[dict[str, Any]]:
    """As a chat has them. Raises RequestError."""
    return [_chat_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools)]


def _chat_tool(where: str, tool: FunctionTool) -> dict[str, Any]:
    if tool.type != "function":
        raise not_a_function(where, tool.type)
    if tool.name is None:
        raise RequestError(f"{where}.name is missing", f"{where}.name")
    check_depth(f"{where}.parameters", tool.parameters)
    function = {name: getattr(tool, name) for name in ("name", "description", "parameters", "strict")}
    return {"type": "function", "function": function}


def chat_tool_choice(choice: Any) -> Any:
    """As a chat has it; what is wrong with it is said there."""
    if not isinstance(choice, dict):
        return choice
    return {"type": choice.get("type"), "function": {"name": choice.get("name")}}


def shown_tool_choice(choice: Any) -> Any:
    """As a response repeats one that a chat has taken."""
    if isinstance(choice, dict):
        return {"type": "function", "name": choice["name"]}
    return choice or "auto"
