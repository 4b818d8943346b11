"""An online request stops a step of offline work alone, and nothing is lost by that: real processes, by what a client
sees."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

NUM_LINES = 8
DONE_S = 120.0
INTERRUPTED = "slackwater_executor_steps_interrupted_total"


@pytest.fixture
def rig(tmp_path: Path, shallow_model: Path) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path, model=shallow_model) as made:
        yield made


def answers(rig: GatewayRig, batch_id: str) -> dict[str, str]:
    """Once the batch is done, by custom id."""
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).status == "completed", "the batch stands still", DONE_S)
    batch = rig.openai.batches.retrieve(batch_id)
    assert batch.request_counts is not None and batch.request_counts.completed == NUM_LINES
    assert batch.output_file_id is not None
    lines = rig.openai.files.content(batch.output_file_id).text.splitlines()
    bodies = {line["custom_id"]: line["response"]["body"] for line in map(json.loads, lines)}
    return {custom_id: body["choices"][0]["text"] for custom_id, body in bodies.items()}


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(("sim", "--sim-time-scale", "10"), id="sim"),
        pytest.param(("torch", "--threads", "1"), id="torch", marks=pytest.mark.slow),
    ],
)
def test_an_online_request_stops_a_step_of_offline_work_and_the_batch_has_the_same_answers(
    rig: GatewayRig, engine: tuple[str, ...]
) -> None:
    numbers = " ".join(f"Number {number} is followed by number {number + 1}." for number in range(100))
    rig.start_offline_queue("--preset", "sarathi++")
    rig.start_executor("executor-0", "--preset", "sarathi++", "--engine", *engine)
    rig.start_gateway()
    rig.wait_ready()
    common = {"model": MODEL, "max_tokens": 4, "temperature": 0.0, "ignore_eos": True}
    attempts = 0

    def is_interrupted() -> bool:
        nonlocal attempts
        attempts += 1
        bodies = [common | {"prompt": f"{attempts}.{line} {numbers}", "seed": line} for line in range(NUM_LINES)]
        before = rig.metric(INTERRUPTED)
        batch_id = rig.submit_batch(bodies)
        wait_until(lambda: rig.metric("slackwater_executor_offline_running") > 0, "no line runs")
        assert rig.complete(max_tokens=1).status_code == 200
        disturbed = answers(rig, batch_id)
        assert answers(rig, rig.submit_batch(bodies)) == disturbed
        return rig.metric(INTERRUPTED) > before

    wait_until(is_interrupted, "no step was interrupted", DONE_S)
