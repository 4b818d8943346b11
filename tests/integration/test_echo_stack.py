"""Preset echo on real processes, by what a client sees: questions about documents as a batch beside streams, in KV
memory that holds few of the documents at a time."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.services.gateway.gateway_rig import MODEL, GatewayRig, wait_until

DOCUMENTS, QUESTIONS, DONE_S = 10, 5, 180.0


def bodies() -> list[dict[str, Any]]:
    """Questions about all documents, mixed."""
    rng = random.Random(1)
    lines = []
    for document in range(DOCUMENTS):
        text = " ".join(f"Fact {number} of document {document} is {rng.randrange(1000)}." for number in range(40))
        lines += [f"{text} What is fact {rng.randrange(40)}, asked as number {n}?" for n in range(QUESTIONS)]
    rng.shuffle(lines)
    common = {"model": MODEL, "max_tokens": 6, "temperature": 0.0, "ignore_eos": True}
    return [common | {"prompt": line} for line in lines]


def answers(folder: Path, preset: str, model: Path) -> tuple[dict[str, str], float]:
    """By custom id, and the share of the batch's prompt tokens that the cache had."""
    folder.mkdir()
    with GatewayRig(folder, model=model) as rig:
        rig.start_offline_queue("--preset", preset)
        rig.start_predictor()
        rig.start_profiler()
        rig.start_executor(
            "executor-0", "--preset", preset, "--engine", "torch", "--threads", "1", "--kv-blocks", "160"
        )
        rig.start_gateway()
        rig.wait_ready()
        wait_until(
            lambda: any(e["event"] == "model published" for e in rig.log_events("predictor")), "no model", DONE_S
        )
        batch_id = rig.submit_batch(bodies())
        while rig.openai.batches.retrieve(batch_id).status not in ("completed", "failed"):
            assert rig.complete(max_tokens=4).status_code == 200
        batch = rig.openai.batches.retrieve(batch_id)
        assert batch.request_counts is not None and batch.request_counts.completed == DOCUMENTS * QUESTIONS
        assert batch.output_file_id is not None
        lines = rig.openai.files.content(batch.output_file_id).text.splitlines()
    responses = {line["custom_id"]: line["response"]["body"] for line in map(json.loads, lines)}
    used = [body["usage"] for body in responses.values()]
    found = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in used)
    texts = {custom_id: body["choices"][0]["text"] for custom_id, body in responses.items()}
    return texts, found / sum(usage["prompt_tokens"] for usage in used)


@pytest.mark.slow
def test_the_answers_are_the_same_and_more_is_found_in_the_cache(tmp_path: Path, shallow_model: Path) -> None:
    plain, found_plain = answers(tmp_path / "plain", "sarathi++", shallow_model)
    echo, found_echo = answers(tmp_path / "echo", "echo", shallow_model)
    assert echo == plain
    assert found_echo > found_plain
