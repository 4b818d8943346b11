"""Deadlines on a stack of real processes, and the baselines of BROS and Echo on the processes alone."""

import json
from collections.abc import Callable
from pathlib import Path

import openai
import pytest

from tests.integration.conftest import MODEL, LocalStack
from tests.integration.test_local_stack import custom_ids, write_batch
from tests.programs import run_slackwater
from tests.services.gateway.gateway_rig import GatewayRig, wait_until

pytestmark = pytest.mark.slow

MakeStack = Callable[..., LocalStack]
NUM_LINES, NUM_TOKENS = 40, 30


def test_a_stack_with_deadlines_of_its_own_serves_both_kinds(make_stack: MakeStack, tmp_path: Path) -> None:
    slos = ("--slo", "ttft_p99<=900ms", "--slo", "tbt_p99<=150ms")
    stack = make_stack("--engine", "sim", "--preset", "bros", *slos)
    stack.start()
    (executor,) = stack.wait_healthy()["executors"]
    told = executor["info"]["strategy"]
    assert (told["ttft_slo_ms"], told["tpot_slo_ms"], told["slo_group_tokens"]) == (900.0, 150.0, 1)

    submitted = stack.run("batch", "submit", str(write_batch(tmp_path / "in.jsonl", NUM_LINES)), "--json")
    assert submitted.returncode == 0, submitted.stderr
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60)
    answer_online(client)
    batch_id = json.loads(submitted.stdout)["id"]
    wait_until(lambda: client.batches.retrieve(batch_id).status == "completed", stack.stderr)
    output = tmp_path / "out.jsonl"
    assert stack.run("batch", "get", batch_id, "--output", str(output)).returncode == 0
    assert custom_ids(output) == sorted(f"line-{index}" for index in range(NUM_LINES))

    counters = stack.status()["executors"][0]["counters"]
    assert counters["steps_planned"] > 0 and counters["finished_online"] == 3
    assert counters["finished_offline"] == NUM_LINES
    assert stack.stop() == 0


@pytest.mark.parametrize(
    ("preset", "slo"), [("round-robin", (400.0, 200.0)), ("fcfs", (400.0, 200.0)), ("echo", (1000.0, 50.0))]
)
def test_both_kinds_are_served(tmp_path: Path, preset: str, slo: tuple[float, float]) -> None:
    with GatewayRig(tmp_path) as rig:
        rig.start_predictor()
        rig.start_offline_queue("--preset", preset)
        rig.start_executor("executor-0", "--preset", preset)
        rig.start_gateway()
        rig.wait_ready()
        bodies = ({"model": MODEL, "prompt": f"The number {n} is", "max_tokens": 4} for n in range(NUM_LINES))
        batch_id = rig.submit_batch(bodies)
        answer_online(rig.openai)
        wait_until(lambda: rig.openai.batches.retrieve(batch_id).status == "completed", rig.logs)
        output = rig.openai.batches.retrieve(batch_id).output_file_id
        assert output is not None
        done = [json.loads(line)["custom_id"] for line in rig.openai.files.content(output).text.splitlines()]
        assert sorted(done) == sorted(f"line-{index}" for index in range(NUM_LINES))
        status = run_slackwater("status", "--json", "--nats", rig.nats_url)
        (executor,) = json.loads(status.stdout)["executors"]
        assert rig.stop("executor-0") == rig.stop("gateway") == rig.stop("offline-queue") == 0
    told, counters = executor["info"]["strategy"], executor["counters"]
    assert (told["ttft_slo_ms"], told["tpot_slo_ms"], told["slo_group_tokens"]) == (*slo, 1)
    assert counters["steps_planned"] > 0 and counters["finished_online"] == 3
    assert counters["finished_offline"] == NUM_LINES


def answer_online(client: openai.OpenAI) -> None:
    """Three short stories."""
    for number in range(3):
        completion = client.completions.create(
            model=MODEL, prompt=f"Story {number}", max_tokens=NUM_TOKENS, extra_body={"ignore_eos": True}
        )
        assert completion.usage is not None and completion.usage.completion_tokens == NUM_TOKENS
