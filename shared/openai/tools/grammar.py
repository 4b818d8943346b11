"""What an output with tool calls keeps to, in llguidance's Lark: calls as the model writes them, their arguments."""

from typing import Any

import msgspec

from shared.openai.errors import RequestError
from shared.openai.response_format import MAX_SCHEMA_BYTES, STYLE, problem_of
from shared.openai.tools.calls import ToolUse
from shared.openai.tools.definitions import FunctionDefinition, Tool
from shared.text.tokenizer import Tokenizer
from shared.text.tool_format import ARGUMENTS, BEGINS, HERMES_END, ToolFormat

ANY_OBJECT = {"type": "object"}
ANY_TEXT = "TEXT: /(.|\\n)*/\n"


def calls_grammar(tools: list[Tool], use: ToolUse, is_demanded: bool, tokenizer: Tokenizer) -> str:
    """Of nothing but calls where one ``is_demanded``; else, where a function is strict, of any text in which what
    begins as a call is one; else empty. Raises RequestError where nothing could keep to it."""
    functions = [tool.function for tool in tools if tool.function is not None and tool.function.name in use.names]
    if not is_demanded and not any(function.strict for function in functions):
        return ""
    key = ARGUMENTS[use.format]
    calls = []
    for place, each in enumerate(functions):
        is_held_to = is_demanded or bool(each.strict)
        calls.append(_call_schema(each, key, f"#/anyOf/{place}/properties/{key}", is_held_to))
    schema = msgspec.json.encode({"anyOf": calls, "x-guidance": STYLE}).decode()
    if len(schema) > MAX_SCHEMA_BYTES:
        raise RequestError(f"the tools' parameters are longer than {MAX_SCHEMA_BYTES} bytes", "tools")
    grammar = f"{_FRAMES[use.format](use, tokenizer, is_demanded)}value: %json {schema}\n"
    if problem := problem_of(grammar, tokenizer):
        raise RequestError(f"the tools' parameters cannot be kept to: {problem}", "tools", "unsupported_value")
    return grammar


def _hermes(use: ToolUse, tokenizer: Tokenizer, is_demanded: bool) -> str:
    """A lazy rule ends with the first mark, so that what follows a mark is never text."""
    mark, end = BEGINS[use.format], f'"\\n{HERMES_END}"'
    if is_demanded:
        more = r' ("\n" call)*' if use.is_parallel else ""
        return f'start: call{more}\ncall: "{mark}\\n" value {end}\n'
    often = "*" if use.is_parallel else "?"
    return f'start: call{often} TEXT\ncall: begin "\\n" value {end}\nbegin[lazy]: TEXT "{mark}"\n{ANY_TEXT}'


def _llama(use: ToolUse, tokenizer: Tokenizer, is_demanded: bool) -> str:
    """Text begins with anything else than an object."""
    return "start: value\n" if is_demanded else "start: (value | TEXT)?\nTEXT: /\\s+|\\s*[^{\\s](.|\\n)*/\n"


def _mistral(use: ToolUse, tokenizer: Tokenizer, is_demanded: bool) -> str:
    """A special token is part of no text; a mark that is written out needs a lazy rule."""
    token_id = tokenizer.call_token_id
    mark, begin = (f'"{BEGINS[use.format]}"', "begin[lazy]") if token_id is None else (f"<[{token_id}]>", "begin")
    values = '" [" value (", " value)* "]"' if use.is_parallel else '" [" value "]"'
    if is_demanded:
        return f"start: {mark} {values}\n"
    return f"start: TEXT | begin {values}\n{begin}: TEXT {mark}\n{ANY_TEXT}"


_FRAMES = {ToolFormat.HERMES: _hermes, ToolFormat.LLAMA: _llama, ToolFormat.MISTRAL: _mistral}


def _call_schema(function: FunctionDefinition, key: str, place: str, is_held_to: bool) -> dict[str, Any]:
    """``place``: where the parameters are in the whole schema, for references within them."""
    parameters = _moved(function.parameters or ANY_OBJECT, place) if is_held_to else ANY_OBJECT
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, key: parameters},
        "required": ["name", key],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: _moved(each, place) for name, each in schema.items()}
    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved
