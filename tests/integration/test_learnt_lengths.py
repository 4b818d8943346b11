"""A batch of mixed lengths under the offline order ``blend``, whose offline-queue is killed in the middle."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.protocol import subjects
from shared.protocol.offline.learnt import Learnt
from shared.scheduling.strategy import Strategy
from tests.integration.conftest import MODEL, LocalStack
from tests.services.gateway.gateway_rig import wait_until

pytestmark = pytest.mark.slow

NUM_LINES = 360
KNOWN = 2  # beginnings: the instructions, and none
STRATEGY = Strategy.of("sarathi++", offline_order="blend")
TIMEOUT_S = 240.0


def write_batch(path: Path) -> Path:
    """Questions after the same instructions, one of three, and stories. Nobody says how long a story will be: the
    engine ends them after 128 tokens in the mean."""
    lines = []
    for number in range(NUM_LINES):
        body: dict[str, Any] = {"model": MODEL, "seed": number, "temperature": 0.8}
        if number % 3 == 0:
            body |= {"prompt": f"Answer in one word. {'Be brief. ' * 30}Question {number}:", "max_tokens": 3}
        else:
            body |= {"prompt": f"Tell story {number}.", "max_tokens": 800}
        lines.append({"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


class Client:
    """One batch on one stack."""

    def __init__(self, stack: LocalStack, path: Path) -> None:
        self._stack = stack
        self._openai = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=5, timeout=120)
        with path.open("rb") as file:
            uploaded = self._openai.files.create(file=file, purpose="batch")
        made = self._openai.batches.create(
            input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h"
        )
        self._batch_id = made.id

    def completed(self) -> int:
        counts = self._openai.batches.retrieve(self._batch_id).request_counts
        return 0 if counts is None else counts.completed

    def outputs(self) -> list[str]:
        """The ids of the output file's lines, once all are there."""
        self.wait_until(lambda: self._openai.batches.retrieve(self._batch_id).status == "completed")
        batch = self._openai.batches.retrieve(self._batch_id)
        assert batch.output_file_id is not None and batch.error_file_id is None
        lines = self._openai.files.content(batch.output_file_id).text.splitlines()
        return [json.loads(line)["custom_id"] for line in lines]

    def details(self) -> dict[str, Any]:
        """The offline-queue's; empty while it does not answer."""
        processes = {each["name"]: each["details"] for each in self._stack.status()["processes"]}
        found: dict[str, Any] = processes.get("offline-queue") or {}
        return found

    def num_kept(self) -> float:
        """Beginnings whose lengths are known to whoever recalls what is kept."""
        order = STRATEGY.make_offline_order(iter(()))
        order.recall(asyncio.run(_kept(self._stack.bus(BusRole.OFFLINE_QUEUE))))
        return order.details()["output_lengths"]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, lambda: f"{self.completed()} of {NUM_LINES}: {self.details()}", TIMEOUT_S)


async def _kept(address: BusAddress) -> bytes:
    bus = await Bus.connect(address, "test")
    try:
        entries = await (await bus.bucket(subjects.LEARNT_BUCKET, Learnt)).entries()
    finally:
        await bus.close()
    return b"".join(entry.value.data for entry in entries if entry.value is not None)


def test_what_was_learnt_outlives_the_offline_queue(make_stack: Callable[..., LocalStack], tmp_path: Path) -> None:
    stack = make_stack("--engine", "sim", "--preset", "sarathi++", "--offline-order", "blend", "--kv-blocks", "150")
    stack.start()
    client = Client(stack, write_batch(tmp_path / "batch.jsonl"))
    client.wait_until(lambda: client.num_kept() >= KNOWN)
    client.wait_until(lambda: stack.status()["queues"].get("pool_compute_density", 0) > 0)
    completed = client.completed()
    assert completed < NUM_LINES, "stories are still told"
    pid = stack.pids()["offline-queue"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: stack.pids().get("offline-queue", pid) != pid, stack.stderr)
    client.wait_until(lambda: "output_lengths" in client.details())
    assert client.details()["output_lengths"] >= KNOWN
    assert "what was learnt is there again" in (stack.data_dir / "logs" / "offline-queue.log").read_text()
    assert Counter(client.outputs()) == {f"line-{number}": 1 for number in range(NUM_LINES)}
    client.wait_until(lambda: stack.status()["executors"][0]["counters"]["finished_offline"] >= NUM_LINES)
    assert stack.status()["executors"][0]["counters"]["finished_offline"] == NUM_LINES, "nothing ran anew"
    assert client.details()["output_length_error"] > 0
    before = client.details()["output_lengths"]
    stack.stop()
    stack.start()
    stack.wait_healthy()
    assert client.details()["output_lengths"] == before, "it is kept at the end, however soon that comes"
