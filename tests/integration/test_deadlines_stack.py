"""Deadlines and the baselines of BROS on stacks of real processes."""

import json
from collections.abc import Callable
from pathlib import Path

import openai
import pytest

from tests.integration.conftest import MODEL, LocalStack
from tests.integration.test_local_stack import custom_ids, write_batch
from tests.services.gateway.gateway_rig import wait_until

pytestmark = pytest.mark.slow

MakeStack = Callable[..., LocalStack]
NUM_LINES, NUM_TOKENS = 40, 30


@pytest.mark.parametrize(
    ("preset", "options", "slo"),
    [
        ("bros", ("--slo", "ttft_p99<=900ms", "--slo", "tbt_p99<=150ms"), (900.0, 150.0)),
        pytest.param("round-robin", (), (400.0, 200.0), marks=pytest.mark.slow),
        pytest.param("fcfs", (), (400.0, 200.0), marks=pytest.mark.slow),
        pytest.param("echo", (), (1000.0, 50.0), marks=pytest.mark.slow),
    ],
)
def test_both_kinds_are_served(
    make_stack: MakeStack, tmp_path: Path, preset: str, options: tuple[str, ...], slo: tuple[float, float]
) -> None:
    stack = make_stack("--engine", "sim", "--preset", preset, *options)
    stack.start()
    (executor,) = stack.wait_healthy()["executors"]
    told = executor["info"]["strategy"]
    assert (told["ttft_slo_ms"], told["tpot_slo_ms"], told["slo_group_tokens"]) == (*slo, 1)

    submitted = stack.run("batch", "submit", str(write_batch(tmp_path / "in.jsonl", NUM_LINES)), "--json")
    assert submitted.returncode == 0, submitted.stderr
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60)
    for number in range(3):
        completion = client.completions.create(
            model=MODEL, prompt=f"Story {number}", max_tokens=NUM_TOKENS, extra_body={"ignore_eos": True}
        )
        assert completion.usage is not None and completion.usage.completion_tokens == NUM_TOKENS
    batch_id = json.loads(submitted.stdout)["id"]
    wait_until(lambda: client.batches.retrieve(batch_id).status == "completed", stack.stderr)
    output = tmp_path / "out.jsonl"
    assert stack.run("batch", "get", batch_id, "--output", str(output)).returncode == 0
    assert custom_ids(output) == sorted(f"line-{index}" for index in range(NUM_LINES))

    counters = stack.status()["executors"][0]["counters"]
    assert counters["steps_planned"] > 0 and counters["finished_online"] == 3
    assert counters["finished_offline"] == NUM_LINES
    assert stack.stop() == 0
