"""Grammars of calls in three families: what models that keep to them can write, demanded or by their own choice."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
from llguidance import LLMatcher

from shared.openai.completions.requests import CHAT, CompletionRequest, parse_completion
from shared.openai.errors import RequestError
from shared.openai.fields import MAX_ITEMS
from shared.openai.grammars import MAX_SCHEMA_BYTES, problem_of
from shared.openai.served_model import ServedModel
from shared.text.tokenizer import Tokenizer
from shared.text.tool_format import ToolFormat
from tests.services.gateway.tool_models import CALLS, TEMPLATES, TIME, USER, WEATHER, make_model
from tests.shared.text.test_tokenizer import FOLDER

NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(autouse=True)
def forgotten() -> None:
    """What was found of grammars before."""
    problem_of.cache_clear()


@functools.cache
def tokenizer_of(format: ToolFormat) -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return Tokenizer.from_folder(make_model(FOLDER, format, Path(folder)))


def parse(tokenizer: Tokenizer, **fields: Any) -> CompletionRequest:
    body = {"model": "tiny", "messages": [USER], "seed": 1} | fields
    return parse_completion(CHAT, msgspec.json.encode(body), tokenizer, ServedModel("tiny", 65536))


def accepts(tokenizer: Tokenizer, grammar: str, text: str) -> bool:
    matcher = LLMatcher(tokenizer.for_grammars, grammar)
    return all(matcher.consume_token(token_id) for token_id in tokenizer.encode(text)) and matcher.is_accepting()


@pytest.mark.parametrize("format", ToolFormat)
def test_a_demanded_call_is_written_as_the_model_writes_calls(format: ToolFormat) -> None:
    tokenizer = tokenizer_of(format)
    required = parse(tokenizer, tools=[WEATHER, TIME], tool_choice="required")
    named = parse(tokenizer, tools=[WEATHER, TIME], tool_choice=NAMED)
    assert required.tools is not None and required.tools.names == ["get_weather", "get_time"]
    assert named.tools is not None and named.tools.names == ["get_weather"]
    assert required.prompt_token_ids == named.prompt_token_ids
    weather, time = CALLS[format]
    assert [accepts(tokenizer, required.sampling.grammar, text) for text in (weather, time)] == [True, True]
    assert [accepts(tokenizer, named.sampling.grammar, text) for text in (weather, time)] == [True, False]
    for text in ("", "Paris", weather[:-1], weather.replace("city", "town"), weather.replace('"Paris"', "5")):
        assert not accepts(tokenizer, required.sampling.grammar, text)
    assert parse(tokenizer, tools=[WEATHER], tool_choice="auto").sampling.grammar == ""


@pytest.mark.parametrize("format", ToolFormat)
def test_strict_functions_are_kept_to_where_the_model_chooses_to_call(format: ToolFormat) -> None:
    tokenizer = tokenizer_of(format)
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    free = parse(tokenizer, tools=[WEATHER, TIME]).sampling.grammar
    held = parse(tokenizer, tools=[strict, TIME]).sampling.grammar
    assert free == ""
    weather, time = CALLS[format]
    for text in ("", "Ordinary words, a < b {c}.\n\nAnd [more].", weather, time, "\n"):
        assert accepts(tokenizer, held, text), text
    if format is not ToolFormat.LLAMA:
        assert accepts(tokenizer, held, f"I look. {weather}")
    for text in (weather[:-1], weather.replace("city", "town"), weather.replace("get_weather", "get_news")):
        assert not accepts(tokenizer, held, text), text


@pytest.mark.parametrize("format", ToolFormat)
@pytest.mark.parametrize(
    "parameters", [{"properties": {"city": {"type": "string"}}, "required": ["city"]}, {"description": "any"}]
)
def test_arguments_are_objects_where_the_parameters_do_not_say_so(
    format: ToolFormat, parameters: dict[str, Any]
) -> None:
    tokenizer = tokenizer_of(format)
    loose = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    grammar = parse(tokenizer, tools=[loose], tool_choice="required").sampling.grammar
    weather, _ = CALLS[format]
    assert accepts(tokenizer, grammar, weather)
    for value in ('"Paris"', "5", "null", '["Paris"]'):
        assert not accepts(tokenizer, grammar, weather.replace('{"city": "Paris"}', value))


def test_parameters_that_are_no_object_are_refused() -> None:
    tokenizer = tokenizer_of(ToolFormat.HERMES)
    text = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "string"}}}
    with pytest.raises(RequestError, match="the parameters of get_weather are no object") as refused:
        parse(tokenizer, tools=[text], tool_choice="required")
    assert refused.value.param == "tools"


@pytest.mark.parametrize("bound", ["minItems", "maxItems"])
def test_more_items_than_a_grammar_can_hold_are_refused_before_it_is_made(bound: str) -> None:
    """Made, it would take all memory there is."""
    tokenizer = tokenizer_of(ToolFormat.HERMES)
    one, many = {"type": "array", bound: 10**9}, {"anyOf": [{"type": "array", bound: MAX_ITEMS // 4}] * 5}
    for items in (one, many, {"type": "array", bound: 1e300}):
        answer = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": {"list": items}}}}
        tool = {
            "type": "function",
            "function": {"name": "f", "strict": True, "parameters": {"properties": {"l": items}}},
        }
        for param, fields in (("response_format", {"response_format": answer}), ("tools", {"tools": [tool]})):
            with pytest.raises(RequestError, match="minItems and maxItems come to more than 50000 in all") as refused:
                parse(tokenizer, **fields)
            assert refused.value.param == param
    few = {"type": "array", "items": {"type": "integer"}, bound: 100}
    answer = {"type": "json_schema", "json_schema": {"name": "x", "schema": few}}
    assert parse(tokenizer, response_format=answer).sampling.grammar


BOTH = {
    ToolFormat.HERMES: "\n".join(CALLS[ToolFormat.HERMES]),
    ToolFormat.LLAMA: "; ".join(CALLS[ToolFormat.LLAMA]),
    ToolFormat.MISTRAL: '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, '
    '{"name": "get_time", "arguments": {}}]',
}
STRICT: dict[str, Any] = {"type": "function", "function": WEATHER["function"] | {"strict": True}}


@pytest.mark.parametrize("format", ToolFormat)
@pytest.mark.parametrize("is_demanded", [True, False])
@pytest.mark.parametrize("is_parallel", [True, False])
def test_several_calls_only_where_they_are_parallel(format: ToolFormat, is_demanded: bool, is_parallel: bool) -> None:
    """Llama's are one at all times; behind the only one of Hermes' may be any text, which is not looked at."""
    choice = {"tool_choice": "required"} if is_demanded else {}
    fields = {"tools": [STRICT, TIME], "parallel_tool_calls": is_parallel} | choice
    tokenizer = tokenizer_of(format)
    grammar = parse(tokenizer, **fields).sampling.grammar
    assert all(accepts(tokenizer, grammar, text) for text in CALLS[format])
    if format is ToolFormat.HERMES and not is_demanded:
        weather, time = CALLS[format]
        for second, is_held_to in ((time, True), (weather, True), (weather.replace("city", "town"), False)):
            text = f"Well. {weather} And {second} So."
            assert accepts(tokenizer, grammar, text) is (is_held_to or not is_parallel)
    else:
        assert accepts(tokenizer, grammar, BOTH[format]) is (is_parallel and format is not ToolFormat.LLAMA)


CITY = {"properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}
ANSWER = {"type": "json_schema", "json_schema": {"name": "city", "schema": {"type": "object"} | CITY, "strict": True}}


@pytest.mark.parametrize("format", ToolFormat)
def test_an_answer_of_a_given_format_leaves_room_for_calls(format: ToolFormat) -> None:
    """As OpenAI's agents ask for it, whose last answer has a type."""
    tokenizer = tokenizer_of(format)

    def kept(*texts: str, **fields: Any) -> list[bool]:
        grammar = parse(tokenizer, **{"tools": [STRICT, TIME], "response_format": ANSWER} | fields).sampling.grammar
        return [accepts(tokenizer, grammar, text) for text in texts]

    rome, (weather, time) = '{"city": "Rome"}', CALLS[format]
    town = weather.replace("city", "town")
    assert kept(rome, weather, time) == [True, True, True]
    assert kept("", "Rome", '{"city": "Oslo"}', town, f"{weather} {rome}", rome[:-1]) == [False] * 6
    assert kept(BOTH[format]) == [format is not ToolFormat.LLAMA] and kept(BOTH[format], parallel_tool_calls=False) == [
        False
    ]
    assert kept(rome, weather, town, tools=[WEATHER]) == [True, True, True], "arguments of one that is not strict"
    assert kept(rome, weather, tool_choice="required") == [False, True]
    assert kept(rome, weather, tool_choice="none") == [True, False]
    assert kept('{"any": 1}', weather, "Rome", response_format={"type": "json_object"}) == [True, True, False]
    assert kept("Rome", weather, response_format={"type": "text"}) == [True, True]


def check_marked_calls(tokenizer: Tokenizer, format: ToolFormat, is_demanded: bool, broken: str) -> None:
    choice = {"tool_choice": "required"} if is_demanded else {}
    grammar = parse(tokenizer, tools=[STRICT, TIME], **choice).sampling.grammar
    weather, _ = CALLS[format]
    assert accepts(tokenizer, grammar, weather) and accepts(tokenizer, grammar, BOTH[format])
    for text in ("Well.", f"Well. {weather}"):
        assert accepts(tokenizer, grammar, text) is not is_demanded
    for text in (weather[:-1], weather.replace("city", "town"), broken):
        assert not accepts(tokenizer, grammar, text)


def without_special_mark() -> Tokenizer:
    """Of a model that writes Mistral's mark letter by letter."""
    return with_special(ToolFormat.MISTRAL, [])


@pytest.mark.parametrize("is_demanded", [True, False])
def test_a_mark_need_be_no_token_of_its_own(is_demanded: bool) -> None:
    tokenizer = without_special_mark()
    assert tokenizer.special_id("[TOOL_CALLS]") is None
    assert tokenizer_of(ToolFormat.MISTRAL).special_id("[TOOL_CALLS]") is not None
    weather, _ = CALLS[ToolFormat.MISTRAL]
    check_marked_calls(tokenizer, ToolFormat.MISTRAL, is_demanded, f"{weather} Well.")


def with_special(format: ToolFormat, marks: list[str], end_of_template: str = "") -> Tokenizer:
    """Of a model that has a token of its own for each of the marks."""
    backend = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    backend.add_special_tokens(marks)
    template = (TEMPLATES / f"{format.value}.jinja").read_text()
    return Tokenizer(backend, template + end_of_template, {})


@pytest.mark.parametrize("is_demanded", [True, False])
def test_hermes_marks_may_be_special_tokens(is_demanded: bool) -> None:
    tokenizer = with_special(ToolFormat.HERMES, ["<tool_call>", "</tool_call>"])
    weather, _ = CALLS[ToolFormat.HERMES]
    check_marked_calls(tokenizer, ToolFormat.HERMES, is_demanded, weather.removesuffix("</tool_call>"))


@pytest.mark.parametrize("format", ToolFormat)
def test_a_model_may_think_before_a_strict_call_where_the_marks_are_special_tokens(format: ToolFormat) -> None:
    """The prompt may have begun it. No text has such tokens."""
    begin, end = ("[THINK]", "[/THINK]") if format is ToolFormat.MISTRAL else ("<think>", "</think>")
    tokenizer = with_special(format, [begin, end], f"{{# {begin} {end} #}}")
    grammar = parse(tokenizer, tools=[STRICT, TIME]).sampling.grammar
    weather, _ = CALLS[format]
    for thought in ("", f"{begin}Well.\n{end}", f"Well.{end}", f"{begin}{end}"):
        for answer in ("", "Hello.", weather):
            assert accepts(tokenizer, grammar, f"{thought}{answer}"), (thought, answer)
        assert not accepts(tokenizer, grammar, f"{thought}{weather.replace('city', 'town')}")
    demanded = parse(tokenizer, tools=[STRICT], tool_choice="required").sampling.grammar
    assert accepts(tokenizer, demanded, weather) and not accepts(tokenizer, demanded, f"{begin}Well.{end}{weather}")


def function(name: str, parameters: dict[str, Any] | None, strict: bool | None = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


def call(name: str, arguments: str) -> str:
    """As Hermes' models write it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def kept(*tools: dict[str, Any], texts: dict[str, bool], **fields: Any) -> None:
    tokenizer = tokenizer_of(ToolFormat.HERMES)
    grammar = parse(tokenizer, tools=list(tools), **fields).sampling.grammar
    assert {text: accepts(tokenizer, grammar, text) for text in texts} == texts


def test_references_are_within_the_parameters_of_their_function() -> None:
    """In lists too, and to all of them; a property may be called as references are."""
    cities = {
        "properties": {"city": {"anyOf": [{"$ref": "#/$defs/City"}, {"type": "null"}]}, "then": {"$ref": "#"}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"City": {"enum": ["Paris", "Rome"]}},
    }
    days = {
        "properties": {"day": {"$ref": "#/$defs/Day"}, "$ref": {"type": "integer"}},
        "additionalProperties": False,
        "$defs": {"Day": {"enum": [1, 2]}},
    }
    texts = {
        call("cities", '{"city": "Rome"}'): True,
        call("cities", '{"city": null, "then": {"city": "Paris"}}'): True,
        call("cities", '{"city": "Bonn"}'): False,
        call("cities", '{"city": "Rome", "then": {"city": 1}}'): False,
        call("days", '{"day": 2, "$ref": 7}'): True,
        call("days", '{"day": "Rome"}'): False,
        call("days", '{"$ref": "#"}'): False,
    }
    kept(function("cities", cities), function("days", days), texts=texts, tool_choice="required")


def test_a_call_has_a_name_and_arguments_and_nothing_else() -> None:
    good = call("f", "{}")
    texts = {
        good: True,
        call("g", "{}"): False,
        good.replace("{}}", '{}, "id": 1}'): False,
        '<tool_call>\n{"name": "f"}\n</tool_call>': False,
        '<tool_call>\n{"arguments": {}}\n</tool_call>': False,
    }
    kept(function("f", None), texts=texts, tool_choice="required")


def test_functions_that_are_not_strict_take_any_arguments_where_the_model_chooses() -> None:
    """Even such whose parameters nobody could keep to."""
    loose = function("loose", {"properties": {"a": {"type": "integer"}}, "required": ["a"]})
    strict = function("strict", {"properties": {"a": {"type": "integer"}}}, True)
    odd = function("odd", {"type": "string"})
    texts = {call("loose", '{"b": [1]}'): True, call("odd", "{}"): True, call("strict", '{"a": "b"}'): False}
    kept(loose, strict, odd, texts=texts)
    with pytest.raises(RequestError, match="the parameters of odd are no object"):
        kept(loose, odd, texts={}, tool_choice="required")
    with pytest.raises(RequestError, match="the parameters of odd are no object"):
        kept(loose, function("odd", {"type": "string"}, True), texts={})


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (
            {"properties": {"a": {"$ref": "https://example.org/a.json"}}},
            "cannot be kept to: .*https://example.org/a.json",
        ),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "cannot be kept to: .*nowhere"),
        ({"not": {"type": "string"}}, "cannot be kept to: .*not"),
        ({"enum": ["x" * MAX_SCHEMA_BYTES]}, f"^the tools' parameters are longer than {MAX_SCHEMA_BYTES} bytes$"),
    ],
)
def test_parameters_that_cannot_be_kept_to_are_refused(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        kept(function("f", parameters), texts={}, tool_choice="required")
    assert refused.value.param == "tools"
