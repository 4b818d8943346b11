"""vLLM's own fields of a completion: what comes of them, and what is said of those that are wrong."""

from typing import Any

import pytest
from llguidance import LLMatcher

from shared.openai.completions.requests import CHAT, ENDPOINTS, TEXT
from shared.openai.errors import RequestError
from tests.shared.openai.completions.test_requests import TOKENIZER, json_schema, parse

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
LARK, GBNF = 'start: "yes" | "no" NUM\nNUM: /[0-9]+/', 'root ::= "yes" | "no" num\nnum ::= [0-9]+'
ODD_TEXTS = ['say "hi"\n', "back\\slash / é 😀", "tab\t"]

# What is asked for; what keeps to it, and what does not.
CONSTRAINTS: list[tuple[str, Any, list[str], list[str]]] = [
    ("json", SCHEMA, ['{"a": 3}'], ['{"b": 3}', '{"a": "3"}', '{"a":3}']),
    ("json", '{"type": "boolean"}'.replace("boolean", "object"), ['{"x": [1]}'], ["[]"]),
    ("regex", r"\d{3}-[a-z]+", ["123-abc"], ["12-abc", "123-", "x"]),
    ("choice", ["red", "reddish", *ODD_TEXTS], ["red", "reddish", *ODD_TEXTS], ["redd", "blue"]),
    ("grammar", LARK, ["yes", "no12"], ["no", "maybe"]),
    ("grammar", GBNF, ["yes", "no12"], ["no", "maybe"]),
]


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(TOKENIZER.for_grammars, grammar)
    token_ids = TOKENIZER.encode(text)
    return bool(matcher.try_consume_tokens(token_ids) == len(token_ids)) and bool(matcher.is_accepting())


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(("kind", "value", "good", "bad"), CONSTRAINTS)
def test_an_output_keeps_to_what_was_asked_for(
    endpoint: str, kind: str, value: Any, good: list[str], bad: list[str]
) -> None:
    grammar = parse(endpoint, structured_outputs={kind: value}).sampling.grammar
    assert parse(endpoint, **{f"guided_{kind}": value}).sampling.grammar == grammar
    assert {text: accepts(grammar, text) for text in good} == dict.fromkeys(good, True)
    assert {text: accepts(grammar, text) for text in bad} == dict.fromkeys(bad, False)


def test_a_schema_is_the_same_by_each_of_its_names() -> None:
    expected = parse(TEXT, response_format=json_schema(SCHEMA)).sampling.grammar
    assert parse(TEXT, guided_json=SCHEMA).sampling.grammar == expected
    assert parse(TEXT, structured_outputs={"json": SCHEMA, "disable_any_whitespace": True}).sampling.grammar == expected
    any_object = parse(TEXT, response_format={"type": "json_object"}).sampling.grammar
    assert parse(TEXT, structured_outputs={"json_object": True}).sampling.grammar == any_object


@pytest.mark.parametrize("fields", [{"structured_outputs": {}}, {"structured_outputs": {"json_object": False}}])
def test_structured_outputs_may_ask_for_nothing(fields: dict[str, Any]) -> None:
    assert parse(CHAT, seed=1, **fields) == parse(CHAT, seed=1)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": "red"}}, "structured_outputs.choice"),
    ({"structured_outputs": {"grammar": 'start: "a" | nope'}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"grammar": "hello ((("}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": "[1]"}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": {"type": "object", "uniqueItems": True}}}, "structured_outputs.json"),
    ({"structured_outputs": {"regex": "a" * 70_000}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"regex": "a"}, "guided_regex": "a"}, "guided_regex"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"json": {}, "disable_additional_properties": True}}, "structured_outputs."),
    ({"structured_outputs": {"regx": "a"}}, "structured_outputs"),
    ({"guided_json": 5}, "guided_json"),
    ({"guided_choice": [""]}, "guided_choice"),
    ({"guided_choice": ["a"], "ignore_eos": True}, "ignore_eos"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"bad_words": [""]}, "bad_words"),
    ({"bad_words": "no"}, "bad_words"),
    ({"bad_words": ["a"] * 129}, "bad_words"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [49152]}, "allowed_token_ids"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
    ({"skip_special_tokens": 1}, "skip_special_tokens"),
    ({"include_stop_str_in_output": "yes"}, "include_stop_str_in_output"),
]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(("fields", "param"), BAD)
def test_what_is_wrong_is_refused_by_its_name(endpoint: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse(endpoint, **fields)
    assert raised.value.status == 400 and (raised.value.param or "").startswith(param)
    assert param.partition(".")[0] in raised.value.message


def test_what_the_engines_are_told(endpoint: str = TEXT) -> None:
    sampling = parse(
        endpoint,
        min_tokens=3,
        bad_words=["Paris", " very good"],
        allowed_token_ids=[7, 5, 7],
        include_stop_str_in_output=True,
        skip_special_tokens=False,
    ).sampling
    assert (sampling.min_tokens, sampling.allowed_token_ids) == (3, (7, 5))
    assert (sampling.includes_stop, sampling.shows_special, sampling.adjusts_logits) == (True, True, True)
    words = ["".join(TOKENIZER.decode([token_id]) for token_id in word) for word in sampling.bad_words]
    assert words == ["Paris", " Paris", "very good", " very good"]


def test_an_end_that_no_token_makes_need_not_be_delayed() -> None:
    assert not parse(TEXT, min_tokens=5, ignore_eos=True, stop=["a"]).sampling.adjusts_logits
    assert parse(TEXT, min_tokens=5, ignore_eos=True, stop_token_ids=[3]).sampling.adjusts_logits
    assert parse(TEXT, min_tokens=5).sampling.adjusts_logits
