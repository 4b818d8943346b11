"""What an output with tool calls keeps to, as a grammar in llguidance's Lark: calls as the model writes them, with
arguments that keep to the functions' parameters."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.openai.errors import RequestError
from shared.openai.response_format import MAX_SCHEMA_BYTES, STYLE, problem_of
from shared.openai.tools.calls import ToolUse
from shared.openai.tools.definitions import FunctionDefinition, Tool
from shared.text.tokenizer import Tokenizer
from shared.text.tool_format import ARGUMENTS, BEGINS, HERMES_END, ToolFormat

ANY_OBJECT = {"type": "object"}


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
    frame = _CALLS[use.format] if is_demanded else _TEXT_WITH_CALLS[use.format]
    grammar = f"{frame(use, tokenizer)}value: %json {schema}\n"
    if problem := problem_of(grammar, tokenizer):
        raise RequestError(f"the tools' parameters cannot be kept to: {problem}", "tools", "unsupported_value")
    return grammar


def _hermes_calls(use: ToolUse, tokenizer: Tokenizer) -> str:
    more = r' ("\n" call)*' if use.is_parallel else ""
    return f'start: call{more}\ncall: "{BEGINS[use.format]}\\n" value "\\n{HERMES_END}"\n'


def _hermes_text(use: ToolUse, tokenizer: Tokenizer) -> str:
    """A lazy rule ends with the first mark, so that what follows a mark is never text."""
    often = "*" if use.is_parallel else "?"
    return (
        f"start: call{often} TEXT\n"
        f'call: begin "\\n" value "\\n{HERMES_END}"\n'
        f'begin[lazy]: TEXT "{BEGINS[use.format]}"\n'
        "TEXT: /(.|\\n)*/\n"
    )


def _llama_calls(use: ToolUse, tokenizer: Tokenizer) -> str:
    return "start: value\n"


def _llama_text(use: ToolUse, tokenizer: Tokenizer) -> str:
    """Text begins with anything else than an object."""
    return "start: (value | TEXT)?\nTEXT: /\\s+|\\s*[^{\\s](.|\\n)*/\n"


def _mistral_calls(use: ToolUse, tokenizer: Tokenizer) -> str:
    more = ' (", " value)*' if use.is_parallel else ""
    return f'start: {_mistral_mark(tokenizer)} " [" value{more} "]"\n'


def _mistral_text(use: ToolUse, tokenizer: Tokenizer) -> str:
    """A special token is part of no text; a mark that is written out needs a lazy rule."""
    more = ' (", " value)*' if use.is_parallel else ""
    if tokenizer.call_token_id is not None:
        begin = f"begin: TEXT {_mistral_mark(tokenizer)}\n"
    else:
        begin = f"begin[lazy]: TEXT {_mistral_mark(tokenizer)}\n"
    return f'start: TEXT | begin " [" value{more} "]"\n{begin}TEXT: /(.|\\n)*/\n'


def _mistral_mark(tokenizer: Tokenizer) -> str:
    token_id = tokenizer.call_token_id
    return f'"{BEGINS[ToolFormat.MISTRAL]}"' if token_id is None else f"<[{token_id}]>"


_CALLS = {
    ToolFormat.HERMES: _hermes_calls,
    ToolFormat.LLAMA: _llama_calls,
    ToolFormat.MISTRAL: _mistral_calls,
}
_TEXT_WITH_CALLS = {
    ToolFormat.HERMES: _hermes_text,
    ToolFormat.LLAMA: _llama_text,
    ToolFormat.MISTRAL: _mistral_text,
}


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
    return {
        name: place + each[1:]
        if name == "$ref" and isinstance(each, str) and each.startswith("#")
        else _moved(each, place)
        for name, each in schema.items()
    }
