"""``response_format``: what the text of an answer has to be, as a grammar that the engines keep to."""

import functools
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shared.errors import ModelError
from shared.openai.errors import RequestError
from shared.openai.fields import NAME
from shared.text.tokenizer import Tokenizer

MAX_SCHEMA_BYTES = 64 * 1024
STYLE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # so it comes to an end
ANY_OBJECT = '{"type": "object"}'
PARAM = "response_format"


class JsonSchema(msgspec.Struct):
    """A schema with OpenAI's frame. ``strict`` changes nothing: an answer always keeps to it."""

    name: Annotated[str, Meta(pattern=NAME)]
    schema: dict[str, Any] = {}
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct):
    """What the text of an answer has to be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def grammar_of(asked: ResponseFormat | None, tokenizer: Tokenizer) -> str:
    """llguidance's own JSON of it; empty for any text. Raises RequestError where nothing could keep to it."""
    if asked is None or asked.type == "text":
        return ""
    from llguidance import LLMatcher  # late: most processes never see a schema

    schema = ANY_OBJECT if asked.type == "json_object" else _schema(asked.json_schema)
    try:
        grammar: str = LLMatcher.grammar_from_json_schema(schema, overrides=STYLE)
        problem = problem_of(grammar, tokenizer)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise RequestError(f"{PARAM}: {problem}", PARAM, "unsupported_value")
    return grammar


def _schema(asked: JsonSchema | None) -> str:
    if asked is None:
        raise RequestError("response_format.json_schema is missing", f"{PARAM}.json_schema")
    schema = msgspec.json.encode(asked.schema)
    if len(schema) > MAX_SCHEMA_BYTES:
        raise RequestError(f"{PARAM}: the schema is longer than {MAX_SCHEMA_BYTES} bytes", PARAM)
    return schema.decode()


@functools.lru_cache(maxsize=256)
def problem_of(grammar: str, tokenizer: Tokenizer) -> str:
    """What is wrong with it; empty where nothing is. Keywords that are not known are never passed over."""
    from llguidance import LLMatcher  # late: most processes never see a grammar

    try:
        is_wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, tokenizer.for_grammars)
    except (ModelError, ValueError) as error:
        return str(error)
    return "; ".join(messages)[:500] if is_wrong else ""
