"""A response whole and as events, of which the last has the whole one."""

import json
from typing import Any

import msgspec
import pytest
from openai.types.responses import Response
from openai.types.responses.response_stream_event import ResponseStreamEvent
from pydantic import TypeAdapter

from shared.openai.completions.answers import CompletionUsage
from shared.openai.responses.answers import ModelResponse, ended, new_response
from shared.openai.responses.events import ResponseEvents
from shared.openai.responses.requests import parse_response
from shared.protocol.sampling import FinishReason
from tests.shared.openai.responses.test_requests import MODEL, TOKENIZER, parse

USAGE = CompletionUsage.of(5, 3, 4)
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def begun(store: bool = False, **fields: Any) -> ModelResponse:
    return new_response(parse(**fields), "r1", 17, store)


def fields_of(response: ModelResponse) -> dict[str, Any]:
    """That the official client takes."""
    fields: dict[str, Any] = json.loads(msgspec.json.encode(response))
    Response.model_validate(fields)
    return fields


def test_a_response_repeats_what_was_asked_for() -> None:
    schema = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
    asked: dict[str, Any] = {
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "metadata": {"team": "x"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "flex",
        "temperature": 0.5,
        "top_p": 0.25,
        "user": "u",
    }
    fields = fields_of(begun(store=True, text={"format": schema}, **asked))
    assert {name: fields[name] for name in asked} == asked
    assert (fields["id"], fields["created_at"], fields["model"], fields["store"]) == ("resp_r1", 17, "tiny", True)
    assert (fields["status"], fields["output"], fields["text"]) == ("in_progress", [], {"format": schema})
    assert fields["usage"] is fields["completed_at"] is fields["incomplete_details"] is None


def test_what_was_not_said_is_told_as_it_is_taken() -> None:
    fields = fields_of(begun())
    assert (fields["metadata"], fields["text"]) == ({}, {"format": {"type": "text"}})
    assert (fields["temperature"], fields["top_p"], fields["service_tier"]) == (1.0, 1.0, "default")
    assert (fields["parallel_tool_calls"], fields["store"], fields["previous_response_id"]) == (True, False, None)
    assert begun(parallel_tool_calls=True).parallel_tool_calls is True


def test_the_response_that_it_goes_on_from_is_named() -> None:
    for previous, told in (("resp_0", "resp_0"), ("", None)):
        body = msgspec.json.encode({"model": "tiny", "input": "Hi", "previous_response_id": previous})
        request = parse_response(body, TOKENIZER, MODEL, before=[])
        assert new_response(request, "r1", 17).previous_response_id == told


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_it_ends_whole_or_cut(reason: FinishReason) -> None:
    fields = fields_of(ended(begun(), "Hello.", reason, USAGE, 21))
    is_cut = reason is FinishReason.LENGTH
    assert fields["status"] == ("incomplete" if is_cut else "completed")
    assert fields["incomplete_details"] == ({"reason": "max_output_tokens"} if is_cut else None)
    assert fields["completed_at"] == (None if is_cut else 21)
    (message,) = fields["output"]
    assert (message["id"], message["status"], message["role"]) == ("msg_r1", fields["status"], "assistant")
    assert [(part["type"], part["text"]) for part in message["content"]] == [("output_text", "Hello.")]
    usage = fields["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (5, 3, 8)
    assert usage["input_tokens_details"]["cached_tokens"] == 4
    assert fields_of(ended(begun(), "", reason, USAGE, None))["completed_at"] is None


def events(data: bytes) -> list[dict[str, Any]]:
    """Each named by its line of ``event``, and one that the official client knows."""
    found = []
    for part in data.decode().split("\n\n")[:-1]:
        name, line = part.split("\n")
        found.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        EVENTS.validate_python(found[-1])
    return found


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_events_tell_the_whole_response(reason: FinishReason) -> None:
    first, clock_s = begun(), 20.75
    stream = ResponseEvents(first, lambda: clock_s)
    data = stream.start() + stream.text("Hel") + stream.text("") + stream.text("lo.")
    clock_s = 21.75
    data += stream.finish(reason.value) + stream.end(USAGE)
    found = events(data)
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    whole = fields_of(ended(first, "Hello.", reason, USAGE, 21))
    place, empty = {"item_id": "msg_r1", "output_index": 0, "content_index": 0}, {"annotations": [], "logprobs": []}
    item = {"id": "msg_r1", "type": "message", "role": "assistant"}
    part = {"type": "output_text", **empty}
    expected: list[dict[str, Any]] = [
        {"type": "response.created", "response": fields_of(first)},
        {"type": "response.in_progress", "response": fields_of(first)},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": item | {"status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **place, "part": part | {"text": ""}},
        {"type": "response.output_text.delta", **place, "delta": "Hel", "logprobs": []},
        {"type": "response.output_text.delta", **place, "delta": "lo.", "logprobs": []},
        {"type": "response.output_text.done", **place, "text": "Hello.", "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part | {"text": "Hello."}},
        {"type": "response.output_item.done", "output_index": 0, "item": whole["output"][0]},
        {"type": f"response.{whole['status']}", "response": whole},
    ]
    assert [{name: each[name] for name in each if name != "sequence_number"} for each in found] == expected


def test_a_response_that_cannot_be_gone_on_with_ends_as_failed() -> None:
    stream = ResponseEvents(begun(), lambda: 20.0)
    stream.start()
    (failed,) = events(stream.fail("the executor is gone"))
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 2)
    assert failed["response"]["status"] == "failed" and failed["response"]["output"] == []
    assert failed["response"]["error"] == {"code": "server_error", "message": "the executor is gone"}
