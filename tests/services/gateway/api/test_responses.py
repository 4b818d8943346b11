"""/v1/responses over real HTTP, bus and executor (sim engine), with the official client, sync and async. Those
that are stored are asked for again, gone on from, deleted, forgotten."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response
from typer.testing import CliRunner

from services.local.cli import app
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

INPUT: Any = [{"role": "user", "content": [{"type": "input_text", "text": "Tell me a story about 😀"}]}]
ENDLESS: Any = {"ignore_eos": True, "seed": 5}  # as a body's further fields
OPTIONS: Any = {"model": MODEL, "max_output_tokens": 12, "extra_body": {"seed": 3, "ignore_eos": True}}
USER = "user"
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


def restart(rig: GatewayRig, *options: str) -> None:
    """The gateway, with these."""
    rig.stop("gateway")
    rig.start_gateway(*options)
    rig.wait_ready()


def test_a_response_is_there_again_as_it_was_answered(rig: GatewayRig) -> None:
    whole = rig.openai.responses.create(input="Hello", instructions="Be brief.", **OPTIONS)
    assert rig.http.get(f"/v1/responses/{whole.id}").json()["store"] is True
    assert rig.openai.responses.retrieve(whole.id) == whole
    *_, last = rig.openai.responses.create(input="Hello", stream=True, **OPTIONS)
    streamed = last.response
    found = rig.openai.responses.retrieve(streamed.id)
    assert (found.output_text, found.status, found.completed_at) == (
        streamed.output_text,
        streamed.status,
        streamed.completed_at,
    )


def test_a_stored_response_is_not_streamed(rig: GatewayRig) -> None:
    made = rig.openai.responses.create(input="Hello", **OPTIONS)
    with pytest.raises(openai.BadRequestError, match="not streamed") as refused:
        rig.openai.responses.retrieve(made.id, stream=True)
    assert refused.value.param == "stream"
    assert rig.openai.responses.retrieve(made.id, stream=False) == made


def test_a_response_goes_on_from_others_without_their_instructions(rig: GatewayRig) -> None:
    first = rig.openai.responses.create(input="Hello", instructions="Be brief.", **OPTIONS)
    second = rig.openai.responses.create(input="And now?", previous_response_id=first.id, **OPTIONS)
    items: Any = [{"role": USER, "content": "More."}, {"role": USER, "content": "Please."}]
    third = rig.openai.responses.create(input=items, instructions="Be loud.", previous_response_id=second.id, **OPTIONS)
    conversation = [
        {"role": USER, "content": "Hello"},
        {"role": "assistant", "content": first.output_text},
        {"role": USER, "content": "And now?"},
        {"role": "assistant", "content": second.output_text},
        *items,
    ]
    same = rig.openai.responses.create(input=conversation, instructions="Be loud.", **OPTIONS)
    assert third.output_text == same.output_text and third.output_text
    assert third.usage is not None and same.usage is not None
    assert third.usage.input_tokens == same.usage.input_tokens
    assert (third.previous_response_id, second.previous_response_id) == (second.id, first.id)
    shown: Any = list(rig.openai.responses.input_items.list(third.id, order="asc", limit=2))
    assert [(item.role, item.content[0].text) for item in shown] == [
        (each["role"], each["content"]) for each in conversation
    ]
    newest: Any = rig.openai.responses.input_items.list(third.id).data[0]
    assert newest.content[0].text == "Please."


def test_a_deleted_response_is_gone_and_those_after_it_are_whole(rig: GatewayRig) -> None:
    first = rig.openai.responses.create(input="Hello", **OPTIONS)
    second = rig.openai.responses.create(input="And now?", previous_response_id=first.id, **OPTIONS)
    rig.openai.responses.delete(first.id)
    for call in (rig.openai.responses.retrieve, rig.openai.responses.delete, rig.openai.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            call(first.id)
    with pytest.raises(openai.NotFoundError) as refused:
        rig.openai.responses.create(input="x", previous_response_id=first.id, **OPTIONS)
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "previous_response_not_found")
    third = rig.openai.responses.create(input="More", previous_response_id=second.id, **OPTIONS)
    assert len(list(rig.openai.responses.input_items.list(third.id))) == 5


def test_an_item_of_an_answer_is_referred_to(rig: GatewayRig) -> None:
    """As Vercel's AI SDK has each answer in the conversation that it sends."""
    first = rig.openai.responses.create(input="Hello", **OPTIONS)
    user: Any = {"role": USER, "content": "Hello"}
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    referring = rig.openai.responses.create(input=[user, reference, user], **OPTIONS)
    said: Any = {"role": "assistant", "content": first.output_text}
    same = rig.openai.responses.create(input=[user, said, user], **OPTIONS)
    assert referring.output_text == same.output_text and referring.output_text
    shown: Any = list(rig.openai.responses.input_items.list(referring.id, order="asc"))
    assert [item.content[0].text for item in shown] == ["Hello", first.output_text, "Hello"]
    rig.openai.responses.delete(first.id)
    many: Any = [{"type": "item_reference", "id": f"msg_{number}"} for number in range(257)]
    for items, param in (
        ([user, reference], "input[1].id"),
        ([{"type": "item_reference"}], "input[0].id"),
        (many, "input"),
    ):
        with pytest.raises(openai.APIStatusError) as refused:
            rig.openai.responses.create(input=items, **OPTIONS)
        assert refused.value.param == param


def test_what_is_not_to_be_stored_is_not(rig: GatewayRig) -> None:
    made = rig.openai.responses.create(input="Hello", store=False, **OPTIONS)
    assert made.to_dict()["store"] is False
    for id in (made.id, "resp_unknown", "a.b", "%20", "x" * 999):
        assert rig.http.get(f"/v1/responses/{id}").status_code == 404
    with pytest.raises(openai.BadRequestError, match="conversation is not supported"):
        rig.openai.responses.create(input="x", conversation="conv_1", **OPTIONS)


def test_one_that_the_bus_never_takes_is_not_to_be_sent_again(rig: GatewayRig) -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "integer"}, "description": "d" * 1024**2}
    huge: Any = {"model": MODEL, "input": "Hello", "max_output_tokens": 1, "text": {"format": form}}
    refused = rig.http.post("/v1/responses", json=huge)
    assert refused.status_code == 413 and refused.json()["error"]["code"] == "request_too_large"
    assert "retry-after" not in refused.headers
    assert rig.http.post("/v1/responses", json=huge | {"store": False}).status_code == 200


def test_it_outlives_the_gateway_and_nats_server(rig: GatewayRig) -> None:
    made = rig.openai.responses.create(input="Hello", **OPTIONS)
    restart(rig)
    assert rig.openai.responses.retrieve(made.id) == made


def test_where_keys_are_on_a_response_is_its_keys_own(rig: GatewayRig) -> None:
    commands = (["key", "create", name, "--json", "--nats", rig.nats_url] for name in ("alice", "bob"))
    secrets = [json.loads(CliRunner().invoke(app, command).stdout)["key"] for command in commands]
    restart(rig, "--require-keys", "always")
    alice, bob = (openai.OpenAI(base_url=f"{rig.url}/v1", api_key=secret, max_retries=0) for secret in secrets)
    with alice, bob:
        made = alice.responses.create(input="Hello", **OPTIONS)
        assert alice.responses.retrieve(made.id) == made
        for call in (bob.responses.retrieve, bob.responses.delete):
            with pytest.raises(openai.NotFoundError):
                call(made.id)
        with pytest.raises(openai.NotFoundError):
            bob.responses.create(input="x", previous_response_id=made.id, **OPTIONS)
        items: Any = [{"type": "item_reference", "id": made.output[0].id}, {"role": USER, "content": "x"}]
        with pytest.raises(openai.NotFoundError, match="no such item") as refused:
            bob.responses.create(input=items, **OPTIONS)
        assert (refused.value.param, refused.value.code) == ("input[0].id", "not_found")
        assert alice.responses.create(input=items, **OPTIONS).output_text
        alice.responses.delete(made.id)


def test_a_response_is_forgotten_at_the_end_of_its_life_also_an_older_one(rig: GatewayRig) -> None:
    restart(rig)
    older = rig.openai.responses.create(input="Hello", **OPTIONS)
    restart(rig, "--response-days", str(2 / 86400))
    rig.wait_ready()
    made = rig.openai.responses.create(input="Hello", **OPTIONS)
    for id in (older.id, made.id):
        wait_until(lambda id=id: rig.http.get(f"/v1/responses/{id}").status_code == 404, "it is there still")


def test_where_none_is_stored_what_needs_one_is_refused(rig: GatewayRig) -> None:
    restart(rig, "--response-days", "0")
    made = rig.openai.responses.create(input="Hello", **OPTIONS)
    assert made.to_dict()["store"] is False
    with pytest.raises(openai.BadRequestError, match="not stored") as refused:
        rig.openai.responses.create(input="x", previous_response_id="resp_1", **OPTIONS)
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError, match="send the item itself"):
        rig.openai.responses.create(input=[{"type": "item_reference", "id": made.output[0].id}], **OPTIONS)
    for call in (rig.openai.responses.retrieve, rig.openai.responses.delete):
        with pytest.raises(openai.NotFoundError, match="not stored"):
            call(made.id)
