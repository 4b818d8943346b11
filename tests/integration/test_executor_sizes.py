"""Requests that are too large for one executor, or for all of them: real processes, the sim engine."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

SMALL, LARGE = 32, 128  # KV blocks
NUM_LINES = 60
DONE_S = 60.0


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[GatewayRig]:
    """The small executor is there first."""
    with GatewayRig(tmp_path) as made:
        made.start_offline_queue("--preset", "sarathi++")
        for executor_id, num_blocks in (("executor-0", SMALL), ("executor-1", LARGE)):
            options = ("--preset", "sarathi++", "--sim-time-scale", "0.1", "--kv-blocks", str(num_blocks))
            made.start_executor(executor_id, *options)
        made.start_gateway()
        made.wait_ready()
        yield made


def body(num_prompt_tokens: int, number: int) -> dict[str, Any]:
    return {"model": MODEL, "prompt": [100 + number] * num_prompt_tokens, "max_tokens": 4, "ignore_eos": True}


def test_only_what_no_executor_can_hold_fails(rig: GatewayRig) -> None:
    """Every third line fits the larger executor alone, every third none of them; flex requests are no different."""
    sizes = (8, 24 * LARGE // 2, 20 * LARGE)
    batch_id = rig.submit_batch(body(sizes[number % 3], number) for number in range(NUM_LINES))
    flex = body(20 * LARGE, 1) | {"service_tier": "flex"}
    answers: list[httpx.Response] = []  # until the queue has said that it takes such requests

    def is_decided() -> bool:
        answers.append(rig.http.post("/v1/completions", json=flex))
        return "nobody takes them now" not in answers[-1].text

    wait_until(is_decided, rig.logs)
    assert "do not fit the KV cache" in answers[-1].text and not answers[-1].is_success
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).status == "completed", rig.logs, DONE_S)
    batch = rig.openai.batches.retrieve(batch_id)
    assert batch.output_file_id is not None and batch.error_file_id is not None
    done, failed = (
        rig.openai.files.content(each).text.splitlines() for each in (batch.output_file_id, batch.error_file_id)
    )
    ids = [{json.loads(line)["custom_id"] for line in lines} for lines in (done, failed)]
    hopeless = {f"line-{number}" for number in range(2, NUM_LINES, 3)}
    assert ids == [{f"line-{number}" for number in range(NUM_LINES)} - hopeless, hopeless]
    for line in failed:
        response = json.loads(line)["response"]
        assert response["status_code"] == 400
        assert response["body"]["error"]["code"] == "context_length_exceeded"
        assert f"do not fit the KV cache of {16 * LARGE} tokens" in response["body"]["error"]["message"]


def test_a_batch_whose_adapter_no_executor_has_is_told_so(tmp_path: Path) -> None:
    """As executors that were started with other adapters than the stack has by now."""
    options = ("--lora-modules", "sql=./sql")
    with GatewayRig(tmp_path) as rig:
        rig.start_offline_queue("--preset", "sarathi++", *options)
        rig.start_executor("executor-0", "--preset", "sarathi++")
        rig.start_gateway(*options)
        rig.wait_ready()
        batch_id = rig.submit_batch([body(4, 1) | {"model": "sql"}])
        wait_until(lambda: rig.openai.batches.retrieve(batch_id).status == "completed", rig.logs, DONE_S)
        error_file_id = rig.openai.batches.retrieve(batch_id).error_file_id
        assert error_file_id is not None
        response = json.loads(rig.openai.files.content(error_file_id).text)["response"]
        error = response["body"]["error"]
        assert (response["status_code"], error["code"]) == (503, "service_unavailable")
        assert error["message"] == "no executor has the adapter 'sql'"
