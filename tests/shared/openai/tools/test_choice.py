"""Calls that a request demands: answers that keep to them, whatever the model would have said."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from shared.openai.completions.requests import CHAT
from shared.text.tool_format import ToolFormat
from tests.services.gateway.gateway_rig import MODEL, GatewayRig
from tests.services.gateway.tool_models import USER, make_model

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


def test_an_answer_has_the_format_that_was_asked_for_or_is_a_call(rig: GatewayRig) -> None:
    schema = {"type": "object", "properties": {"sky": {"enum": ["blue", "grey"]}}, "required": ["sky"]}
    sky = {"name": "sky", "schema": schema | {"additionalProperties": False}}
    form: Any = {"type": "json_schema", "json_schema": sky}
    ends = set()
    for seed in range(12):
        options: Any = {"model": MODEL, "messages": [USER], "tools": [CITY], "response_format": form, "seed": seed}
        (answer,) = rig.openai.chat.completions.create(**options, temperature=2.0, max_tokens=200).choices
        ends.add(answer.finish_reason)
        if answer.finish_reason == "tool_calls":
            assert answer.message.content is None
            assert all(call.type == "function" for call in answer.message.tool_calls or [])
        else:
            assert json.loads(answer.message.content or "")["sky"] in ("blue", "grey")
    assert ends == {"stop", "tool_calls"}


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
