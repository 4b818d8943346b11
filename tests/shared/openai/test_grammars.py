"""Formats of answers as grammars, by what these accept, and what is said where there can be none."""

from typing import Any

import msgspec
import pytest
import tokenizers
from llguidance import LLMatcher
from tokenizers import models

from shared.openai.errors import RequestError
from shared.openai.fields import MAX_DEPTH, MAX_ITEMS
from shared.openai.grammars import (
    MAX_OPTIONAL,
    MAX_SCHEMA_BYTES,
    ResponseFormat,
    encoded,
    grammar_of,
    problem_of,
    schema_grammar,
)
from shared.text.tokenizer import Tokenizer
from tests.shared.openai.completions.test_requests import TOKENIZER
from tests.shared.text.test_tokenizer import BYTE_LEVEL


@pytest.fixture(autouse=True)
def forgotten() -> None:
    """What was found of grammars before."""
    problem_of.cache_clear()


def made(**fields: Any) -> str:
    return grammar_of(msgspec.convert(fields, ResponseFormat), BYTE_LEVEL)


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(BYTE_LEVEL.for_grammars, grammar)
    return all(matcher.consume_token(token_id) for token_id in BYTE_LEVEL.encode(text)) and matcher.is_accepting()


INTEGER = {"name": "a", "schema": {"type": "integer"}}


def test_the_type_says_what_an_answer_keeps_to() -> None:
    assert grammar_of(None, BYTE_LEVEL) == made(type="text") == made(type="text", json_schema=INTEGER) == ""
    number = made(type="json_schema", json_schema=INTEGER)
    assert (accepts(number, "5"), accepts(number, "{}")) == (True, False)
    for grammar in (made(type="json_object"), made(type="json_object", json_schema=INTEGER)):
        assert (accepts(grammar, '{"a": [1]}'), accepts(grammar, "5")) == (True, False)
    anything = made(type="json_schema", json_schema={"name": "a"})
    assert accepts(anything, "5") and accepts(anything, "{}") and not accepts(anything, "five")
    with pytest.raises(RequestError, match=r"^response_format.json_schema is missing$") as refused:
        made(type="json_schema")
    assert refused.value.param == "response_format.json_schema"


def test_white_space_is_as_it_is_and_no_more() -> None:
    grammar = made(type="json_object")
    assert accepts(grammar, '{"a": 1, "b": 2}')
    for text in ('{"a":1}', '{"a": 1,"b": 2}', '{ "a": 1}', '{"a": 1}\n'):
        assert not accepts(grammar, text), text


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def referring(length: int) -> dict[str, Any]:
    """To one definition after the other."""
    definitions = {f"{place}": {"properties": {"x": {"$ref": f"#/$defs/{place + 1}"}}} for place in range(length)}
    return {"$defs": {**definitions, f"{length}": {}}, "$ref": "#/$defs/0"}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (nested(MAX_DEPTH + 1), f"^field is nested more than {MAX_DEPTH} levels deep$"),
        ({"minItems": MAX_ITEMS + 1}, "^field: minItems and maxItems come to more than"),
        (referring(1200), "^field refers to definitions of more than"),
        ({"multipleOf": 999_983}, "^field: multipleOf leaves more than"),
        ({"enum": ["x" * MAX_SCHEMA_BYTES]}, f"^field: the schema is longer than {MAX_SCHEMA_BYTES} bytes$"),
        ({"type": "banana"}, "^field: .*banana"),
        ({"not": {"type": "string"}}, "^field: .*not"),
        ({"type": "string", "pattern": "(?=a)"}, "^field: "),
        ({"minimum": 5, "maximum": 2, "type": "integer"}, "^field: "),
        ({"minimum": 10**400}, "^field: number out of range"),
    ],
)
def test_a_schema_that_nothing_could_keep_to_is_refused(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        schema_grammar(schema, BYTE_LEVEL, "field")
    assert refused.value.param == "field" and len(refused.value.message) > len("field: ")


def test_what_is_wrong_with_a_grammar_is_said_in_a_few_words() -> None:
    assert problem_of('start: "a"\n', BYTE_LEVEL) == ""
    assert "nowhere" in problem_of("start: nowhere\n", BYTE_LEVEL)
    names = "".join(f" | nowhere_{number}" for number in range(200))
    assert 400 < len(problem_of(f'start: "a"{names}\n', BYTE_LEVEL)) <= 500


def test_a_grammar_that_an_executor_could_not_begin_with_is_wrong() -> None:
    many = "|".join(f"({number}|a)b" for number in range(3000))
    for grammar, said in (
        (LLMatcher.grammar_from_regex("a?" * 2000), "lexer precomputation failed"),
        (LLMatcher.grammar_from_regex("a?" * (MAX_OPTIONAL + 1)), f"more than {MAX_OPTIONAL} parts"),
        (LLMatcher.grammar_from_regex("(a|)" * (MAX_OPTIONAL + 1)), f"more than {MAX_OPTIONAL} parts"),
        (LLMatcher.grammar_from_regex("a{0,1}" * (MAX_OPTIONAL + 1)), f"more than {MAX_OPTIONAL} parts"),
        (LLMatcher.grammar_from_regex(many), ""),
    ):
        found = problem_of(grammar, TOKENIZER)
        assert found.count("\n") == 0 and (said in found if said else not found), found


def test_a_tokenizer_that_no_grammar_can_be_matched_with_is_a_problem() -> None:
    words = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), None, {})
    assert problem_of('start: "a"\n', words).startswith("this model's tokenizer cannot be matched with a grammar: ")


def test_the_length_of_a_schema_is_that_of_its_json() -> None:
    longest = "é" * (MAX_SCHEMA_BYTES // 2 - 1)  # and two quotes
    assert encoded(longest, "it is", "field") == f'"{longest}"'
    assert encoded({"a": [1, None]}, "it is", "field") == '{"a":[1,null]}'
    with pytest.raises(RequestError, match=f"^it is longer than {MAX_SCHEMA_BYTES} bytes$") as refused:
        encoded(longest + "a", "it is", "field")
    assert refused.value.param == "field"
