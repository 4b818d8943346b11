"""A batch of mixed lengths under the offline order ``blend``, whose offline-queue is killed in the middle."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai

from tests.integration.conftest import MODEL, LocalStack, wait_until

NUM_SHORT, NUM_LONG = 48, 24
SHORT_TOKENS, LONG_TOKENS = 4, 700
TIMEOUT_S = 240.0


def write_batch(path: Path) -> Path:
    """Questions after the same instructions, and stories; nobody says how long their answers will be."""
    lines = []
    for number in range(NUM_SHORT + NUM_LONG):
        is_short = number % 3 > 0
        prompt = f"Answer with one word. {'Be brief. ' * 30}Question {number}:" if is_short else f"Tell story {number}."
        max_tokens = SHORT_TOKENS if is_short else LONG_TOKENS
        body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "seed": number, "temperature": 0.8}
        line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body}
        lines.append(json.dumps(line) + "\n")
    path.write_text("".join(lines))
    return path


def details(stack: LocalStack) -> dict[str, Any]:
    """The offline-queue's; empty while it does not answer."""
    processes = {each["name"]: each["details"] for each in stack.status()["processes"]}
    found: dict[str, Any] = processes.get("offline-queue") or {}
    return found


def test_what_was_learnt_outlives_the_offline_queue(make_stack: Callable[..., LocalStack], tmp_path: Path) -> None:
    stack = make_stack("--engine", "sim", "--preset", "sarathi++", "--offline-order", "blend")
    stack.start()
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=5, timeout=120)
    with write_batch(tmp_path / "batch.jsonl").open("rb") as file:
        uploaded = client.files.create(file=file, purpose="batch")
    batch = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h")

    def completed() -> int:
        counts = client.batches.retrieve(batch.id).request_counts
        return counts.completed if counts is not None else 0

    log = stack.data_dir / "logs" / "offline-queue.log"
    wait_until(lambda: details(stack).get("lengths_learnt", 0) >= NUM_SHORT, stack.stderr, TIMEOUT_S)
    learnt = details(stack)["lengths_learnt"]
    assert completed() < NUM_SHORT + NUM_LONG, "stories are still told"
    wait_until(lambda: "what was learnt is kept" in log.read_text(), stack.stderr, TIMEOUT_S)
    pid = stack.pids()["offline-queue"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: stack.pids().get("offline-queue", pid) != pid, stack.stderr)
    wait_until(lambda: "lengths_learnt" in details(stack), stack.stderr)
    assert details(stack)["lengths_learnt"] >= NUM_SHORT
    assert "what was learnt is there again" in log.read_text()
    wait_until(lambda: client.batches.retrieve(batch.id).status == "completed", stack.stderr, TIMEOUT_S)
    ended = client.batches.retrieve(batch.id)
    assert ended.output_file_id is not None and ended.error_file_id is None
    rows = [json.loads(line) for line in client.files.content(ended.output_file_id).text.splitlines()]
    assert Counter(row["custom_id"] for row in rows) == {f"line-{n}": 1 for n in range(NUM_SHORT + NUM_LONG)}
    (executor,) = stack.wait_healthy()["executors"]
    assert executor["counters"]["finished_offline"] == NUM_SHORT + NUM_LONG, "nothing ran twice"
    assert learnt
