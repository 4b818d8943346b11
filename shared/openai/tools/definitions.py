"""The tools of a chat completion: which may be called, what a model is told of them, how an answer tells its calls."""

from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shared.openai.errors import RequestError
from shared.openai.fields import NAME, check_depth
from shared.openai.tools.calls import CalledFunction, ToolUse
from shared.protocol.sampling import FinishReason
from shared.text.tool_format import ToolFormat

MAX_TOOLS = 128
TOOL_CALLS = "tool_calls"  # why an answer ended that calls tools
MISTRAL_ID_LENGTH = 9  # its templates take no other
NO_TOOLS = "the chat template of this model takes no tools, or writes calls in a format that is not understood"
NO_PARAMETERS = {"type": "object", "properties": {}}  # what a template is shown where there are none
REQUIRED = "required"
FREE = (None, "auto", "none")  # of tool_choice: no call is demanded


def tool_choice_schema(named: dict[str, Any]) -> dict[str, Any]:
    """``named``: the properties, beside its type, by which a choice names a function."""
    properties = {"type": {"enum": ["function"]}} | named
    by_name = {"type": "object", "required": list(properties), "properties": properties}
    return {"anyOf": [{"enum": ["auto", "none", REQUIRED]}, by_name, {"type": "null"}]}


_NAME_SCHEMA = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
TOOL_CHOICE_SCHEMA = tool_choice_schema({"function": _NAME_SCHEMA})


class FunctionDefinition(msgspec.Struct, omit_defaults=True):
    """A function that the model may call; ``parameters`` is a JSON schema, which the model is shown, and held to where
    ``strict`` or ``tool_choice`` says so."""

    name: Annotated[str, Meta(pattern=NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """Only functions are supported."""

    type: str
    function: FunctionDefinition | None = None


class MessageToolCall(msgspec.Struct):
    """A call in an assistant's message."""

    id: str
    function: CalledFunction
    type: str = "function"


def tool_use(
    tools: list[Tool] | None, tool_choice: Any, is_parallel: bool, format: ToolFormat | None
) -> ToolUse | None:
    """None where the model can call none: there are no tools, or ``tool_choice`` says so. Raises RequestError."""
    names = [tool.function.name for tool in tools or () if tool.function is not None]
    if tool_choice not in FREE:
        names = _demanded_names(tool_choice, names)
    if not tools or tool_choice == "none":
        return None
    for index, tool in enumerate(tools):
        if tool.type != "function" or tool.function is None:
            raise not_a_function(f"tools[{index}]", tool.type)
        check_depth(f"tools[{index}].function.parameters", tool.function.parameters)
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"there are {len(tools)} tools; at most {MAX_TOOLS} are allowed", "tools")
    if format is None:
        raise RequestError(f"tools are not supported: {NO_TOOLS}", "tools", "unsupported_value")
    return ToolUse(format, names, is_parallel)


def not_a_function(where: str, type: str) -> RequestError:
    """Of a tool there."""
    message = f"a tool of type {type!r} is not supported; only functions are"
    return RequestError(message, f"{where}.type", "unsupported_value")


def _demanded_names(tool_choice: Any, known: list[str]) -> list[str]:
    """Of the functions of which one has to be called. Raises RequestError."""
    if not known:
        raise RequestError("tool_choice demands a call, and there are no tools", "tool_choice")
    if tool_choice == REQUIRED:
        return known
    match tool_choice:
        case {"type": "function", "function": {"name": str(name)}}:
            pass
        case _:
            message = "tool_choice must be auto, none, required or the name of a function"
            raise RequestError(message, "tool_choice", "unsupported_value")
    if name not in known:
        raise RequestError(f"tool_choice names {name!r}, which is none of the tools", "tool_choice")
    return [name]


def template_tools(tools: list[Tool]) -> list[dict[str, Any]]:
    """As chat templates expect them: Hermes' own fails at a function without parameters."""
    functions = [tool.function for tool in tools if tool.function is not None]
    return [{"type": "function", "function": _template_function(function)} for function in functions]


def _template_function(function: FunctionDefinition) -> dict[str, Any]:
    parameters = NO_PARAMETERS if function.parameters is None else function.parameters
    shown: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(function, parameters=parameters, strict=None))
    return shown


def template_calls(where: str, calls: list[MessageToolCall]) -> list[dict[str, Any]]:
    """As chat templates expect them: arguments as an object, of no text an empty one. Raises RequestError."""
    called = []
    for index, call in enumerate(calls):
        param = f"{where}[{index}].function.arguments"
        try:
            arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"the arguments are not a JSON object: {error}", param) from error
        check_depth(param, arguments)
        function = {"name": call.function.name, "arguments": arguments}
        called.append({"id": call.id, "type": "function", "function": function})
    return called


def message_call(
    call: CalledFunction, format: ToolFormat, request_id: str, choice: int, number: int
) -> MessageToolCall:
    """``number`` counts the calls of a choice. The id is the same whenever the same answer is written."""
    digest = blake2b(f"{request_id}-{choice}:{number}".encode(), digest_size=12).hexdigest()
    id = digest[:MISTRAL_ID_LENGTH] if format is ToolFormat.MISTRAL else f"call_{digest}"
    return MessageToolCall(id, call)


def finish_reason_of(finish_reason: FinishReason, num_calls: int, tools: ToolUse | None) -> str:
    """An answer that is cut at its limit of tokens says so, calls or not. One that ends after its first call is whole
    with it, whatever the model goes on with."""
    if tools is None or not num_calls:
        return finish_reason.value
    return TOOL_CALLS if finish_reason is FinishReason.STOP or not tools.is_parallel else finish_reason.value
