"""Reasoning apart from content, by what a client sees of it: whole, streamed, as flex and in a batch."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until
from tests.services.gateway.thinking_model import make_thinking_model

LETTER, NUM = 28, 6
CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": NUM,
    "allowed_token_ids": [LETTER],
}
THINKS, ANSWERS = (
    {"chat_template_kwargs": {"always_thinks": True}},
    {"chat_template_kwargs": {"enable_thinking": False}},
)


@pytest.fixture(scope="module")
def rig(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    path = ("--model-path", str(make_thinking_model(model_folder, tmp_path_factory.mktemp("model"))))
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_offline_queue("--preset", "sarathi++", *path)
        made.start_executor("executor-0", "--sim-time-scale", "0.1", "--preset", "sarathi++", *path)
        made.start_gateway(*path)
        made.wait_ready()
        yield made


def message(rig: GatewayRig, **fields: Any) -> dict[str, Any]:
    answer = rig.http.post("/v1/chat/completions", json=CHAT | fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["choices"][0]["message"]
    return found


@pytest.mark.parametrize("tier", ["default", "flex"])
def test_an_answer_that_is_cut_while_it_thinks_has_no_content(rig: GatewayRig, tier: str) -> None:
    text = message(rig, **ANSWERS, service_tier=tier)["content"]
    assert len(text) == NUM
    thought = message(rig, **THINKS, service_tier=tier)
    assert (thought["reasoning"], thought["content"]) == (text, None)
    assert message(rig, **THINKS, include_reasoning=False, service_tier=tier)["content"] == ""
    assert "reasoning" not in message(rig, **ANSWERS, service_tier=tier)


def test_streams_tell_reasoning_by_its_own_name(rig: GatewayRig) -> None:
    stream = rig.openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=NUM,
        stream=True,
        extra_body={"allowed_token_ids": [LETTER]} | THINKS,
    )
    pieces = [chunk.choices[0].delta.model_dump() for chunk in stream]
    assert len("".join(piece.get("reasoning") or "" for piece in pieces)) == NUM
    assert not any(piece["content"] for piece in pieces)


def test_lines_of_a_batch_have_it_too(rig: GatewayRig) -> None:
    batch_id = rig.submit_batch([CHAT | THINKS, CHAT | ANSWERS], endpoint="/v1/chat/completions")
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).status == "completed", rig.logs)
    output_file_id = rig.openai.batches.retrieve(batch_id).output_file_id
    assert output_file_id is not None
    lines = [json.loads(line) for line in rig.openai.files.content(output_file_id).text.splitlines()]
    messages = {line["custom_id"]: line["response"]["body"]["choices"][0]["message"] for line in lines}
    assert messages["line-0"]["content"] is None and messages["line-0"]["reasoning"] == messages["line-1"]["content"]


def test_a_message_that_was_begun_is_gone_on_with(rig: GatewayRig) -> None:
    begun = [*CHAT["messages"], {"role": "assistant", "content": "<think>So"}]
    answer = message(rig, messages=begun, continue_final_message=True)
    assert len(answer["reasoning"]) == NUM
    refused = rig.http.post("/v1/chat/completions", json=CHAT | {"chat_template_kwargs": {"messages": 1}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template_kwargs.messages")
