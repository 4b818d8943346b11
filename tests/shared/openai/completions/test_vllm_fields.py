"""vLLM's own fields of a completion: what comes of them, and what is said of those that are wrong."""

from typing import Any

import pytest
import tokenizers
from llguidance import LLMatcher
from tokenizers import models, normalizers, processors

from shared.openai.completions.bad_words import bad_word_tokens
from shared.openai.completions.requests import CHAT, ENDPOINTS, TEXT
from shared.openai.errors import RequestError
from shared.text.tokenizer import Tokenizer
from tests.shared.openai.completions.test_requests import TOKENIZER, json_schema, parse

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
LARK, GBNF = 'start: "yes" | "no" NUM\nNUM: /[0-9]+/', 'root ::= "yes" | "no" num\nnum ::= [0-9]+'
WITH_BLANKS = Tokenizer(tokenizers.Tokenizer(models.BPE(vocab={" ": 0, "h": 1, "e": 2}, merges=[])), None, {})
CHAIN = "".join(f"r{number}: r{number + 1}\n" for number in range(4000)) + 'r4000: "a"\n'
GROUPS = "".join(f"r{number}: ((r{number + 1}))\n" for number in range(400)) + 'r400: "a"\n'
ODD_TEXTS = ['say "hi"\n', "back\\slash / é 😀", "tab\t"]

# What is asked for; what keeps to it, and what does not.
CONSTRAINTS: list[tuple[str, Any, list[str], list[str]]] = [
    ("json", SCHEMA, ['{"a": 3}'], ['{"b": 3}', '{"a": "3"}', '{"a":3}']),
    ("json", '{"type": "boolean"}'.replace("boolean", "object"), ['{"x": [1]}'], ["[]"]),
    ("regex", r"\d{3}-[a-z]+", ["123-abc"], ["12-abc", "123-", "x"]),
    ("choice", ["red", "reddish", *ODD_TEXTS], ["red", "reddish", *ODD_TEXTS], ["redd", "blue"]),
    ("grammar", LARK, ["yes", "no12"], ["no", "maybe"]),
    ("grammar", GBNF, ["yes", "no12"], ["no", "maybe"]),
    ("grammar", 'start: "a" %json {"type": "integer", "multipleOf": 7}', ["a14"], ["a15", "14"]),
    ("grammar", 'start: %json {"enum": ["%json {}"]}', ['"%json {}"'], ["{}"]),
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
    ({"structured_outputs": {"grammar": 'start: %json {"multiple\\u004ff": 999983}'}}, "structured_outputs.grammar"),
    ({"guided_grammar": 'start: "a" %json\n{"minItems": 1000000000}'}, "guided_grammar"),
    ({"guided_grammar": "start: %json schema"}, "guided_grammar"),
    ({"guided_grammar": f"start: r0\n{CHAIN}"}, "guided_grammar"),
    ({"guided_grammar": f"start: r0\n{GROUPS}"}, "guided_grammar"),
    ({"guided_grammar": f"root ::= r0\n{CHAIN.replace(':', ' ::=')}"}, "guided_grammar"),
    ({"guided_grammar": 'root ::= "a"' + "\n" * 30_000}, "guided_grammar"),
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


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"guided_regex": "a" * 70_000}, "^guided_regex is longer than 65536 bytes$"),
        ({"structured_outputs": {"choice": ["a" * 70_000]}}, "^structured_outputs.choice is longer than 65536 bytes$"),
        ({"guided_json": "{"}, "^guided_json is not valid JSON: "),
        ({"guided_json": "[1]"}, "^guided_json is no JSON schema; give an object$"),
        ({"guided_regex": "(a"}, "^guided_regex: ."),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice does not go with guided_regex: an answer keeps"),
        (
            {"structured_outputs": {"json_object": True, "regex": "a"}},
            "json_object does not go with structured_outputs.regex",
        ),
        (
            {"structured_outputs": {"whitespace_pattern": " "}},
            "^structured_outputs.whitespace_pattern is not supported",
        ),
        ({"structured_outputs": {"disable_additional_properties": True}}, "leave it out or set it to false$"),
    ],
)
def test_it_is_said_what_is_wrong(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        parse(TEXT, **fields)


def test_a_word_is_banned_as_it_begins_a_text_and_as_it_follows_a_blank() -> None:
    """Where that is another token: of several tokens only the first may be, and a space before it is as none."""
    words = ["cat", " dog", "Supercalifragilistic", "cat"]
    found = bad_word_tokens(words, TOKENIZER)
    bare, spaced = ([TOKENIZER.encode(f"{blank}{word}") for word in ("cat", "dog")] for blank in ("", " "))
    assert [*map(list, found[:4])] == [bare[0], spaced[0], bare[1], spaced[1]] and len(set(found)) == len(found)
    assert all(len(each) == 1 for each in (*bare, *spaced)) and bare != spaced
    long = TOKENIZER.encode("Supercalifragilistic")
    assert tuple(long) in found and len(long) > 1


def test_a_blank_that_is_a_token_of_its_own_bans_no_other_word() -> None:
    """Nor does a token that every text begins with, which is none of the word's."""
    assert bad_word_tokens(["he"], WITH_BLANKS) == ((1, 2),)
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, " ": 1, "h": 2, " h": 3}, merges=[(" ", "h")]))
    backend.normalizer = normalizers.Prepend("a")
    begun = Tokenizer(backend, None, {})
    assert (begun.encode("h"), begun.encode(" h")) == ([0, 2], [0, 3])
    assert bad_word_tokens(["h"], begun) == ((0, 2),)
    special = tokenizers.Tokenizer(models.BPE(vocab={"h": 0, " ": 1, " h": 2}, merges=[(" ", "h")]))
    special.add_special_tokens(["<s>"])
    special.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 3)])
    assert bad_word_tokens(["h"], Tokenizer(special, None, {})) == ((0,), (2,))
    with pytest.raises(RequestError, match="'z' has no token in the model's vocabulary") as refused:
        bad_word_tokens(["he", "z"], WITH_BLANKS)
    assert refused.value.param == "bad_words"


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
