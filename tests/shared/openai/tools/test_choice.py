"""Calls that a request demands: grammars of three families, and answers that keep to them, whatever the model would
have said."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from llguidance import LLMatcher

from shared.openai.completions.requests import CHAT, CompletionRequest, parse_completion
from shared.openai.errors import RequestError
from shared.openai.fields import MAX_ITEMS
from shared.openai.served_model import ServedModel
from shared.text.tokenizer import Tokenizer
from shared.text.tool_format import ToolFormat
from tests.services.gateway.gateway_rig import MODEL, GatewayRig
from tests.services.gateway.tool_models import CALLS, TIME, USER, WEATHER, make_model

NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
CITY: dict[str, Any] = {  # a model that draws at random comes to the end of its arguments
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
            "additionalProperties": False,
            "$defs": {"City": {"enum": ["Paris", "Rome"]}},
        },
    },
}
OTHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "additionalProperties": False}},
}


@pytest.fixture(scope="module")
def folders(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[ToolFormat, Path]:
    return {each: make_model(model_folder, each, tmp_path_factory.mktemp(each.value)) for each in ToolFormat}


def parse(tokenizer: Tokenizer, **fields: Any) -> CompletionRequest:
    body = {"model": "tiny", "messages": [USER], "seed": 1} | fields
    return parse_completion(CHAT, msgspec.json.encode(body), tokenizer, ServedModel("tiny", 2048))


def accepts(tokenizer: Tokenizer, grammar: str, text: str) -> bool:
    matcher = LLMatcher(tokenizer.for_grammars, grammar)
    return all(matcher.consume_token(token_id) for token_id in tokenizer.encode(text)) and matcher.is_accepting()


@pytest.mark.parametrize("format", ToolFormat)
def test_a_demanded_call_is_written_as_the_model_writes_calls(
    folders: dict[ToolFormat, Path], format: ToolFormat
) -> None:
    tokenizer = Tokenizer.from_folder(folders[format])
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
def test_strict_functions_are_kept_to_where_the_model_chooses_to_call(
    folders: dict[ToolFormat, Path], format: ToolFormat
) -> None:
    tokenizer = Tokenizer.from_folder(folders[format])
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
    folders: dict[ToolFormat, Path], format: ToolFormat, parameters: dict[str, Any]
) -> None:
    tokenizer = Tokenizer.from_folder(folders[format])
    loose = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    grammar = parse(tokenizer, tools=[loose], tool_choice="required").sampling.grammar
    weather, _ = CALLS[format]
    assert accepts(tokenizer, grammar, weather)
    for value in ('"Paris"', "5", "null", '["Paris"]'):
        assert not accepts(tokenizer, grammar, weather.replace('{"city": "Paris"}', value))


def test_parameters_that_are_no_object_are_refused(folders: dict[ToolFormat, Path]) -> None:
    tokenizer = Tokenizer.from_folder(folders[ToolFormat.HERMES])
    text = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "string"}}}
    with pytest.raises(RequestError, match="the parameters of get_weather are no object") as refused:
        parse(tokenizer, tools=[text], tool_choice="required")
    assert refused.value.param == "tools"


@pytest.mark.parametrize("bound", ["minItems", "maxItems"])
def test_more_items_than_a_grammar_can_hold_are_refused_before_it_is_made(
    folders: dict[ToolFormat, Path], bound: str
) -> None:
    """Made, it would take all memory there is."""
    tokenizer = Tokenizer.from_folder(folders[ToolFormat.HERMES])
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


def test_several_calls_only_where_they_are_parallel(folders: dict[ToolFormat, Path]) -> None:
    tokenizer = Tokenizer.from_folder(folders[ToolFormat.HERMES])
    both = "\n".join(CALLS[ToolFormat.HERMES])
    for is_parallel in (True, False):
        fields = {"tools": [WEATHER, TIME], "tool_choice": "required", "parallel_tool_calls": is_parallel}
        assert accepts(tokenizer, parse(tokenizer, **fields).sampling.grammar, both) is is_parallel


@pytest.fixture(scope="module", params=[ToolFormat.HERMES, ToolFormat.MISTRAL])
def rig(
    request: pytest.FixtureRequest, folders: dict[ToolFormat, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayRig]:
    options = ("--model-path", str(folders[request.param]))
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", "--sim-time-scale", "0.1", *options)
        made.start_gateway(*options)
        made.wait_ready()
        yield made


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_every_answer_is_a_call_that_keeps_to_the_parameters(rig: GatewayRig, choice: Any) -> None:
    options: Any = {"model": MODEL, "messages": [USER], "tools": [CITY, OTHER], "tool_choice": choice}
    options |= {"parallel_tool_calls": False}
    names = set()
    for seed in range(6):
        (answer,) = rig.openai.chat.completions.create(**options, seed=seed).choices
        assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
        (call,) = answer.message.tool_calls or []
        assert call.type == "function"
        names.add(call.function.name)
        arguments = json.loads(call.function.arguments)
        if call.function.name == "get_weather":
            assert arguments["city"] in ("Paris", "Rome") and arguments["days"] in (1, 2, 3)
        else:
            assert arguments == {}
    assert "get_weather" in names and (names == {"get_weather"} or choice == "required")


def test_a_stream_brings_the_same_call(rig: GatewayRig) -> None:
    options: Any = {"model": MODEL, "messages": [USER], "tools": [CITY], "tool_choice": "required", "seed": 3}
    (whole,) = rig.openai.chat.completions.create(**options).choices
    with rig.openai.chat.completions.stream(**options) as stream:
        (streamed,) = stream.get_final_completion().choices
    called = [[call.function.to_dict() for call in each.message.tool_calls or []] for each in (whole, streamed)]
    assert called[0] and len(called[0]) == len(called[1])
    assert [each["name"] for each in called[0]] == [each["name"] for each in called[1]]
    assert [each["arguments"] for each in called[0]] == [each["arguments"] for each in called[1]]


def test_parameters_that_cannot_be_kept_to_are_refused(rig: GatewayRig) -> None:
    unkept: Any = {"type": "function", "function": {"name": "f", "parameters": {"not": {"type": "string"}}}}
    with pytest.raises(openai.BadRequestError) as refused:
        rig.openai.chat.completions.create(model=MODEL, messages=[USER], tools=[unkept], tool_choice="required")  # type: ignore[list-item]
    assert (refused.value.param, refused.value.code) == ("tools", "unsupported_value")


@pytest.mark.parametrize("is_strict", [True, False])
def test_parameters_that_are_nested_too_deeply_are_refused(rig: GatewayRig, is_strict: bool) -> None:
    function = {"name": "f", "strict": is_strict, "parameters": {"items": 0}}
    body = {"model": MODEL, "messages": [USER], "tools": [{"type": "function", "function": function}]}
    nested = '{"items": ' * 700 + "{}" + "}" * 700
    content = json.dumps(body).replace('{"items": 0}', nested).encode()
    refused = rig.http.post(CHAT, content=content, headers={"content-type": "application/json"})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "tools[0].function.parameters")
    assert "deep" in error["message"]
