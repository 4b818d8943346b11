"""Responses that are stored: asked for again, gone on from, deleted, forgotten; with the official client."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from typer.testing import CliRunner

from services.local.cli import app
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

OPTIONS: Any = {"model": MODEL, "max_output_tokens": 12, "extra_body": {"seed": 3, "ignore_eos": True}}
USER = "user"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", "--sim-time-scale", "0.1")
        made.start_gateway()
        made.wait_ready()
        yield made


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


def test_what_is_not_to_be_stored_is_not(rig: GatewayRig) -> None:
    made = rig.openai.responses.create(input="Hello", store=False, **OPTIONS)
    assert made.to_dict()["store"] is False
    for id in (made.id, "resp_unknown", "a.b", "%20", "x" * 999):
        assert rig.http.get(f"/v1/responses/{id}").status_code == 404
    with pytest.raises(openai.BadRequestError, match="conversation is not supported"):
        rig.openai.responses.create(input="x", conversation="conv_1", **OPTIONS)


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
    for call in (rig.openai.responses.retrieve, rig.openai.responses.delete):
        with pytest.raises(openai.NotFoundError, match="not stored"):
            call(made.id)
