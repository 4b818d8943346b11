"""What an output keeps to, as a grammar for the engines: ``response_format``, or calls of tools as the model writes
them, in llguidance's Lark."""

import functools
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shared.errors import ModelError
from shared.openai.errors import RequestError
from shared.openai.fields import NAME, check_depth, check_schemas
from shared.openai.tools.calls import ToolUse
from shared.openai.tools.definitions import FunctionDefinition, Tool
from shared.text.tokenizer import Tokenizer
from shared.text.tool_format import ARGUMENTS, BEGINS, HERMES_END, ToolFormat

MAX_SCHEMA_BYTES = 64 * 1024
OPTIONAL = re.compile(r"[?*+]|\{[\d,]|\|\s*[|)]|\(\s*\|")  # the mark of a part that may be absent, or come again
MAX_OPTIONAL = 4000  # one behind the other they take a quarter of a second, ten times as many half a minute
STYLE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # so it comes to an end
ANY_OBJECT = {"type": "object"}
ANY_TEXT = "TEXT: /(.|\\n)*/\n"
PARAM = "response_format"


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    """A schema with OpenAI's frame. ``strict`` changes nothing: an answer always keeps to it."""

    name: Annotated[str, Meta(pattern=NAME)]
    schema: dict[str, Any] = {}
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """What the text of an answer has to be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def schema_of(asked: ResponseFormat | None) -> dict[str, Any] | None:
    """That an answer keeps to; None for any text. Raises RequestError where it is missing."""
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return ANY_OBJECT
    if asked.json_schema is None:
        raise RequestError("response_format.json_schema is missing", f"{PARAM}.json_schema")
    return asked.json_schema.schema


def grammar_of(asked: ResponseFormat | None, tokenizer: Tokenizer) -> str:
    """llguidance's own JSON of it; empty for any text. Raises RequestError where nothing could keep to it."""
    schema = schema_of(asked)
    return "" if schema is None else schema_grammar(schema, tokenizer, PARAM)


def schema_grammar(schema: dict[str, Any], tokenizer: Tokenizer, param: str) -> str:
    """Of JSON that keeps to the schema, which the field ``param`` gave. Raises RequestError where nothing could."""
    from llguidance import LLMatcher  # late: most processes never see a schema

    check_depth(param, schema)
    check_schemas(param, schema)
    text = encoded(schema, f"{param}: the schema is", param)
    try:
        grammar: str = LLMatcher.grammar_from_json_schema(text, overrides=STYLE)
        problem = problem_of(grammar, tokenizer)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise RequestError(f"{param}: {problem}", param, "unsupported_value")
    return grammar


def calls_grammar(
    tools: list[Tool], use: ToolUse, is_demanded: bool, tokenizer: Tokenizer, answer: dict[str, Any] | None = None
) -> str:
    """Of nothing but calls where one ``is_demanded``; else, with the schema of an ``answer``, of that or of calls;
    else, where a function is strict, of any text in which what begins as a call is one; else empty. Raises RequestError
    where nothing could keep to it."""
    functions = [tool.function for tool in tools if tool.function is not None and tool.function.name in use.names]
    answer = None if is_demanded else answer
    begins_with_call = is_demanded or answer is not None
    if not begins_with_call and not any(function.strict for function in functions):
        return ""
    key = ARGUMENTS[use.format]
    calls = []
    for place, each in enumerate(functions):
        is_held_to = is_demanded or bool(each.strict)
        if is_held_to and (each.parameters or ANY_OBJECT).get("type", "object") != "object":
            raise RequestError(f"the parameters of {each.name} are no object: arguments always are", "tools")
        calls.append(_call_schema(each, key, f"#/anyOf/{place}/properties/{key}", is_held_to))
    check_schemas("tools", {"anyOf": calls})
    schema = encoded({"anyOf": calls, "x-guidance": STYLE}, "the tools' parameters are", "tools")
    frame = _FRAMES[use.format](use, tokenizer, begins_with_call)
    if answer is not None:
        frame = _or_answer(frame, answer)
    elif not is_demanded:
        frame = _behind_thought(frame, tokenizer)
    grammar = f"{frame}value: %json {schema}\n"
    if problem := problem_of(grammar, tokenizer):
        raise RequestError(f"the tools' parameters cannot be kept to: {problem}", "tools", "unsupported_value")
    return grammar


@functools.lru_cache(maxsize=256)
def problem_of(grammar: str, tokenizer: Tokenizer) -> str:
    """What is wrong with it, also where an executor could not begin with it; empty where nothing is. Keywords that are
    not known are never passed over."""
    from llguidance import LLMatcher  # late: most processes never see a grammar

    if len(OPTIONAL.findall(grammar)) > MAX_OPTIONAL:
        return f"more than {MAX_OPTIONAL} parts of it are optional or repeated"
    try:
        is_wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, tokenizer.for_grammars)
        if is_wrong:
            return "; ".join(messages)[:500]
        matcher = LLMatcher(tokenizer.for_grammars, grammar, log_level=0)
        matcher.compute_bitmask()
    except (ModelError, ValueError) as error:
        return str(error)
    return matcher.get_error().partition("\n")[0][:500]


def encoded(value: Any, what: str, param: str) -> str:
    """As JSON. Raises RequestError where that is too long."""
    data = msgspec.json.encode(value)
    if len(data) > MAX_SCHEMA_BYTES:
        raise RequestError(f"{what} longer than {MAX_SCHEMA_BYTES} bytes", param)
    return data.decode()


def _hermes(use: ToolUse, tokenizer: Tokenizer, is_demanded: bool) -> str:
    mark, end = _mark(BEGINS[use.format], tokenizer), f'"\\n" {_mark(HERMES_END, tokenizer)}'
    if is_demanded:
        more = r' ("\n" call)*' if use.is_parallel else ""
        return f'start: call{more}\ncall: {mark} "\\n" value {end}\n'
    often = "*" if use.is_parallel else "?"
    return f'start: call{often} TEXT\ncall: begin "\\n" value {end}\n{_text_up_to(mark)}'


def _llama(use: ToolUse, tokenizer: Tokenizer, is_demanded: bool) -> str:
    """Text begins with anything else than an object."""
    return "start: value\n" if is_demanded else "start: (value | TEXT)?\nTEXT: /\\s+|\\s*[^{\\s](.|\\n)*/\n"


def _mistral(use: ToolUse, tokenizer: Tokenizer, is_demanded: bool) -> str:
    mark = _mark(BEGINS[use.format], tokenizer)
    values = '" [" value (", " value)* "]"' if use.is_parallel else '" [" value "]"'
    if is_demanded:
        return f"start: {mark} {values}\n"
    return f"start: TEXT | begin {values}\n{_text_up_to(mark)}"


def _or_answer(frame: str, schema: dict[str, Any]) -> str:
    shown = encoded(schema | {"x-guidance": STYLE}, f"{PARAM}: the schema is", PARAM)
    return f"start: calls | answer\nanswer: %json {shown}\ncalls: {frame.removeprefix('start: ')}"


def _behind_thought(frame: str, tokenizer: Tokenizer) -> str:
    """Where the marks of what a model thinks are special tokens: no text has them."""
    begin, end = (tokenizer.special_id(mark) for mark in tokenizer.thinking or ("", ""))
    if begin is None or end is None:
        return frame
    answer = f"answer: {frame.removeprefix('start: ')}"
    return f"start: thought? answer\nthought: <[{begin}]>? TEXT? <[{end}]>\n{answer}"


def _mark(text: str, tokenizer: Tokenizer) -> str:
    """The token, where it is a special one: no text has that in it."""
    token_id = tokenizer.special_id(text)
    return f'"{text}"' if token_id is None else f"<[{token_id}]>"


def _text_up_to(mark: str) -> str:
    """A mark that is written out needs a lazy rule, which ends with the first one: what follows it is never text."""
    begin = "begin[lazy]" if mark.startswith('"') else "begin"
    return f"{begin}: TEXT {mark}\n{ANY_TEXT}"


_FRAMES = {ToolFormat.HERMES: _hermes, ToolFormat.LLAMA: _llama, ToolFormat.MISTRAL: _mistral}


def _call_schema(function: FunctionDefinition, key: str, place: str, is_held_to: bool) -> dict[str, Any]:
    """``place``: where the parameters are in the whole schema, for references within them."""
    parameters = _moved(ANY_OBJECT | (function.parameters or {}), place) if is_held_to else ANY_OBJECT
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
