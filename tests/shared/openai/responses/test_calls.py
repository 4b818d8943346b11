"""Calls of functions in a response: what is asked of them, the items that they are, and the events that tell them."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai.types.responses import Response

from services.offline_queue.batches.input import BatchInput
from services.offline_queue.batches.results import ResultWriter
from shared.openai.completions.requests import CHAT, CompletionRequest, parse_completion
from shared.openai.errors import RequestError
from shared.openai.responses.answers import ended, new_response
from shared.openai.responses.events import ResponseEvents
from shared.openai.responses.requests import RESPONSES, ResponseRequest, parse_response
from shared.openai.served_model import ServedModel
from shared.protocol.offline.batches import BatchRecord
from shared.protocol.offline.requests import OfflineResult
from shared.protocol.sampling import FinishReason
from shared.text.tokenizer import Tokenizer
from shared.text.tool_format import ToolFormat
from tests.services.gateway.tool_models import CALLS, TIME, USER, WEATHER, make_model
from tests.shared.openai.responses.test_answers import USAGE, events, fields_of

MODEL = ServedModel("tiny", 2048)
FLAT: list[dict[str, Any]] = [{"type": "function"} | tool["function"] for tool in (WEATHER, TIME)]
NAMED = {"type": "function", "name": "get_time"}
ARGUMENTS = '{"city": "Paris"}'
CALL, OTHER_CALL = CALLS[ToolFormat.HERMES]
CALLED: dict[str, Any] = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": ARGUMENTS}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "c1", "output": "18 degrees"}


@pytest.fixture(scope="module")
def hermes(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(make_model(model_folder, ToolFormat.HERMES, tmp_path_factory.mktemp("hermes")))


def parse(tokenizer: Tokenizer, **fields: Any) -> ResponseRequest:
    body = {"model": "tiny", "input": [USER], "tools": FLAT, "seed": 1} | fields
    return parse_response(msgspec.json.encode(body), tokenizer, MODEL)


def chat(tokenizer: Tokenizer, **fields: Any) -> CompletionRequest:
    body = {"model": "tiny", "messages": [USER], "tools": [WEATHER, TIME], "seed": 1} | fields
    return parse_completion(CHAT, msgspec.json.encode(body), tokenizer, MODEL)


@pytest.mark.parametrize(
    ("asked", "as_of_a_chat"),
    [
        ({}, {}),
        ({"tool_choice": "none"}, {"tool_choice": "none"}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        ({"tool_choice": NAMED}, {"tool_choice": {"type": "function", "function": {"name": "get_time"}}}),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
    ],
)
def test_tools_are_those_of_a_chat(hermes: Tokenizer, asked: Any, as_of_a_chat: Any) -> None:
    assert parse(hermes, **asked).completion == chat(hermes, **as_of_a_chat)


def test_a_strict_function_is_kept_to(hermes: Tokenizer) -> None:
    strict = chat(hermes, tools=[{"type": "function", "function": WEATHER["function"] | {"strict": True}}])
    assert strict.sampling.grammar and parse(hermes, tools=[FLAT[0] | {"strict": True}]).completion == strict


def test_calls_and_their_outputs_are_a_chats_messages(hermes: Tokenizer) -> None:
    """What an assistant says and calls is one message; an output may come in parts."""
    said = {"role": "assistant", "content": "I look."}
    parts = {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "noon"}]}
    time = {"type": "function_call", "call_id": "c2", "name": "get_time", "arguments": ""}
    asked = parse(hermes, input=[USER, said, CALLED, time, OUTPUT, parts, CALLED | {"call_id": "c3"}])
    calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id, name, arguments in (
            ("c1", "get_weather", ARGUMENTS),
            ("c2", "get_time", ""),
            ("c3", "get_weather", ARGUMENTS),
        )
    ]
    messages: list[dict[str, Any]] = [
        USER,
        said | {"tool_calls": calls[:2]},
        {"role": "tool", "tool_call_id": "c1", "content": "18 degrees"},
        {"role": "tool", "tool_call_id": "c2", "content": "noon"},
        {"role": "assistant", "content": "", "tool_calls": calls[2:]},
    ]
    assert asked.input == messages and asked.completion == chat(hermes, messages=messages)


@pytest.mark.parametrize("instructions", [None, "Be brief."])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [USER, USER, CALLED, CALLED | {"call_id": "c2", "arguments": "[]"}]}, "input[3].arguments"),
        ({"input": [USER, {"role": "assistant", "content": "x"}, CALLED | {"arguments": "{"}]}, "input[2].arguments"),
        ({"input": [USER, CALLED, OUTPUT, OUTPUT | {"call_id": "c9"}]}, "input[3].call_id"),
        ({"input": [USER, CALLED, OUTPUT | {"output": [{"type": "input_image"}]}]}, "input[2].output[0]"),
        ({"tools": [FLAT[0] | {"parameters": {"type": "string"}, "strict": True}]}, "tools"),
        ({"tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "get_time"}}}, "tool_choice"),
    ],
)
def test_mistakes_are_told_by_the_clients_names(
    hermes: Tokenizer, fields: Any, param: str, instructions: str | None
) -> None:
    with pytest.raises(RequestError) as refused:
        parse(hermes, instructions=instructions, **fields)
    assert refused.value.param == param
    assert "messages[" not in refused.value.message and ".function" not in refused.value.message


def test_the_depth_of_parameters_is_told_by_the_clients_name(hermes: Tokenizer) -> None:
    nested: dict[str, Any] = {}
    for _ in range(101):
        nested = {"items": nested}
    tools = [FLAT[0], {"type": "function", "name": "f", "parameters": nested}]
    for choice in ("auto", "none"):
        with pytest.raises(RequestError, match=r"^tools\[1\].parameters is nested more") as refused:
            parse(hermes, tools=tools, tool_choice=choice)
        assert refused.value.param == "tools[1].parameters"


def test_a_response_repeats_its_tools(hermes: Tokenizer) -> None:
    told = fields_of(new_response(parse(hermes, tool_choice=NAMED | {"x": [1]}, parallel_tool_calls=False), "r1", 17))
    assert (told["tool_choice"], told["parallel_tool_calls"]) == (NAMED, False)
    absent: dict[str, Any] = {"description": None, "parameters": None}
    assert told["tools"] == [absent | each | {"strict": False} for each in FLAT]


KINDS = {
    "message": ("output_text", "text"),
    "reasoning": ("reasoning_text", "text"),
    "function_call": ("function_call_arguments", "arguments"),
}
WHOLE = "<tool_call> is a word."
OUTPUTS: list[tuple[str, FinishReason, dict[str, Any], list[str], str]] = [
    (CALL, FinishReason.STOP, {}, ["fc_r1"], "completed"),
    (f"I look.\n{CALL}\n{OTHER_CALL}", FinishReason.STOP, {}, ["msg_r1", "fc_r1_1", "fc_r1_2"], "completed"),
    (f"{CALL}\nDone.", FinishReason.STOP, {}, ["fc_r1", "msg_r1_1"], "completed"),
    (f"{CALL}\n{OTHER_CALL[:20]}", FinishReason.LENGTH, {}, ["fc_r1", "msg_r1_1"], "incomplete"),
    (CALL, FinishReason.LENGTH, {}, ["fc_r1"], "incomplete"),
    (CALL + OTHER_CALL, FinishReason.LENGTH, {"parallel_tool_calls": False}, ["fc_r1"], "completed"),
    (WHOLE, FinishReason.STOP, {}, ["msg_r1"], "completed"),
    ("", FinishReason.STOP, {}, ["msg_r1"], "completed"),
    (CALL, FinishReason.STOP, {"tool_choice": "none"}, ["msg_r1"], "completed"),
]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(("text", "reason", "asked", "ids", "status"), OUTPUTS)
def test_events_tell_the_items_of_the_whole_response(
    hermes: Tokenizer, text: str, reason: FinishReason, asked: Any, ids: list[str], status: str, size: int
) -> None:
    request = parse(hermes, **asked)
    first, tools = new_response(request, "r1", 17), request.completion.tools
    whole = fields_of(ended(first, text, reason, USAGE, 21, tools))
    assert [item["id"] for item in whole["output"]] == ids and whole["status"] == status
    stream = ResponseEvents(first, lambda: 21.5, tools)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    data = stream.start() + b"".join(map(stream.text, pieces)) + stream.finish(reason.value) + stream.end(USAGE)
    found = events(data)
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    assert found[-1]["type"] == f"response.{status}" and found[-1]["response"] == whole
    check_items(found, whole["output"])


def check_items(found: list[dict[str, Any]], output: list[dict[str, Any]]) -> None:
    """One after the other, each begun, told piece by piece, and ended as it is."""
    of_items = [each for each in found if "output_index" in each]
    assert [each["output_index"] for each in of_items] == sorted(each["output_index"] for each in of_items)
    for index, item in enumerate(output):
        own = [each for each in of_items if each["output_index"] == index]
        added, *middle, done = own
        kind, field = KINDS[item["type"]]
        assert (added["type"], done["type"]) == ("response.output_item.added", "response.output_item.done")
        assert added["item"]["status"] == "in_progress" and done["item"] == item
        assert {each["item_id"] for each in middle} == {item["id"]} == {added["item"]["id"]}
        text = "".join(each["delta"] for each in middle if each["type"] == f"response.{kind}.delta")
        assert text == (item["arguments"] if field == "arguments" else item["content"][0]["text"])
        (whole,) = [each for each in middle if each["type"] == f"response.{kind}.done"]
        assert text == whole[field]


def test_calls_have_ids_by_which_their_outputs_come_back(hermes: Tokenizer) -> None:
    request = parse(hermes)
    response = ended(new_response(request, "r1", 17), CALL + OTHER_CALL, FinishReason.STOP, USAGE, 21)
    assert [item.id for item in response.output] == ["msg_r1"], "without tools it is text"
    response = ended(
        new_response(request, "r1", 17), CALL + OTHER_CALL, FinishReason.STOP, USAGE, 21, request.completion.tools
    )
    calls = fields_of(response)["output"]
    assert [(call["name"], call["arguments"], call["status"]) for call in calls] == [
        ("get_weather", ARGUMENTS, "completed"),
        ("get_time", "{}", "completed"),
    ]
    outputs = [OUTPUT | {"call_id": call["call_id"]} for call in calls]
    assert parse(hermes, input=[USER, *calls, *outputs]).completion.prompt_token_ids


def test_a_batch_line_answers_with_its_calls(hermes: Tokenizer) -> None:
    record = BatchRecord("batch_1", RESPONSES, "file-1", "24h", 1, 2, "in_progress", model="tiny")
    body = {"model": "tiny", "input": [USER], "tools": FLAT}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": RESPONSES, "body": body}).encode()
    parsed = BatchInput(record, hermes, MODEL).parse([(1, line)])
    result = OfflineResult("batch_1.1", hermes.encode(CALL), FinishReason.STOP)
    written = json.loads(ResultWriter(record, "", hermes).output_line(parsed.lines[0], result))
    (call,) = Response.model_validate(written["response"]["body"]).output
    assert call.type == "function_call" and (call.name, call.arguments) == ("get_weather", ARGUMENTS)
