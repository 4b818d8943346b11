"""/v1/responses over real HTTP, bus and executor (sim engine), with the official client, sync and async."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response

from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

INPUT: Any = [{"role": "user", "content": [{"type": "input_text", "text": "Tell me a story about 😀"}]}]
ENDLESS: Any = {"ignore_eos": True, "seed": 5}  # as a body's further fields
ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", "--sim-time-scale", "0.1", "--sim-mean-output-tokens", "30")
        made.start_gateway()
        made.wait_ready()
        yield made


def test_every_field_of_an_answer(rig: GatewayRig) -> None:
    raw = rig.openai.responses.with_raw_response.create(
        model=MODEL,
        input=INPUT,
        instructions="Be brief.",
        max_output_tokens=12,
        temperature=0.5,
        top_p=0.9,
        metadata={"team": "x"},
        user="someone",
        extra_body=ENDLESS,
    )
    body = json.loads(raw.text)
    Response.model_validate_json(raw.text, strict=True)
    assert set(body) <= set(Response.model_fields) | {"store"}
    answer = raw.parse()
    assert answer.output_text and answer.id.startswith("resp_")
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")  # type: ignore[union-attr]
    assert (answer.instructions, answer.metadata, answer.user) == ("Be brief.", {"team": "x"}, "someone")
    assert (answer.temperature, answer.top_p, answer.max_output_tokens) == (0.5, 0.9, 12)
    assert answer.usage is not None and answer.usage.output_tokens == 12
    assert answer.usage.total_tokens == answer.usage.input_tokens + 12
    assert (answer.service_tier, body["store"], answer.previous_response_id) == ("default", True, None)


def test_it_is_the_chat_completion_of_the_same_messages(rig: GatewayRig) -> None:
    options: Any = {"model": MODEL, "temperature": 0.7, "extra_body": {"seed": 3}}
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    chat = rig.openai.chat.completions.create(messages=messages, **options)
    answer = rig.openai.responses.create(input="Hello", instructions="Be brief.", **options)
    assert answer.output_text == chat.choices[0].message.content and answer.output_text
    assert (answer.status, chat.choices[0].finish_reason) == ("completed", "stop")
    assert answer.completed_at is not None and answer.completed_at >= answer.created_at


def test_the_events_come_in_order_and_join_to_the_answer(rig: GatewayRig) -> None:
    options: Any = {"model": MODEL, "input": INPUT, "extra_body": {"seed": 3}}
    whole = rig.openai.responses.create(**options)
    events = list(rig.openai.responses.create(**options, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert list(dict.fromkeys(event.type for event in events)) == [*ORDER, "response.completed"]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text and len(deltas) > 1
    last = events[-1]
    assert last.type == "response.completed" and last.response.output_text == whole.output_text
    assert last.response.usage is not None and whole.usage is not None
    assert last.response.usage.total_tokens == whole.usage.total_tokens
    assert last.response.status == whole.status == "completed"
    assert len({event.item_id for event in events if event.type == "response.output_text.delta"}) == 1


def test_the_clients_stream_helper_gives_the_final_response(rig: GatewayRig) -> None:
    with rig.openai.responses.stream(model=MODEL, input="Once", extra_body={"seed": 3}) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text and final.status == "completed"


def test_an_answer_that_is_cut_ends_as_incomplete(rig: GatewayRig) -> None:
    stream = rig.openai.responses.create(
        model=MODEL, input="Once", max_output_tokens=3, stream=True, extra_body=ENDLESS
    )
    last = list(stream)[-1]
    assert last.type == "response.incomplete" and last.response.usage is not None
    assert last.response.usage.output_tokens == 3
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


async def test_the_async_client_does_the_same(rig: GatewayRig) -> None:
    options: Any = {"model": MODEL, "input": INPUT, "extra_body": {"seed": 8}}
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.responses.create(**options)
        async with client.responses.stream(**options) as stream:
            text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
            final = await stream.get_final_response()
    assert text == whole.output_text == final.output_text


def test_a_client_that_leaves_ends_its_request_on_the_executor(rig: GatewayRig) -> None:
    aborted = rig.metric("slackwater_executor_aborted_total")
    body = {"model": MODEL, "input": "x", "stream": True, "ignore_eos": True}
    with (
        httpx.Client(base_url=rig.url) as client,
        client.stream("POST", "/v1/responses", json=body) as response,
    ):
        assert next(response.iter_raw()).startswith(b"event: response.created\ndata: ")
    wait_until(lambda: rig.metric("slackwater_executor_aborted_total") == aborted + 1, "the executor runs it still")
