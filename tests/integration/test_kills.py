"""Real processes killed with SIGKILL under load: no line of a batch is lost, none has two results, and a stream whose
executor dies goes on."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.integration.conftest import MODEL, LocalStack, wait_until

VICTIMS = ("offline-queue", "executor-0", "gateway")
LINES = 120


def write_batch(path: Path, num_lines: int, max_tokens: int) -> Path:
    """Each line has its own seed, so that its output is the same whenever and wherever it runs."""
    with path.open("w") as file:
        for number in range(num_lines):
            body = {
                "model": MODEL,
                "prompt": f"Item {number} of the inventory is a",
                "max_tokens": max_tokens,
                "seed": number,
                "temperature": 0.8,
                "ignore_eos": True,
            }
            line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    return path


class Client:
    """The official client against one stack, which outlives restarts of the gateway."""

    def __init__(self, stack: LocalStack) -> None:
        self._stack = stack
        self.openai = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=120)

    def submit(self, path: Path) -> str:
        with path.open("rb") as file:
            uploaded = self.openai.files.create(file=file, purpose="batch")
        return self.openai.batches.create(
            input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h"
        ).id

    def batch(self, batch_id: str) -> Any:
        """None while no gateway answers."""
        try:
            return self.openai.batches.retrieve(batch_id)
        except (openai.APIConnectionError, openai.InternalServerError):
            return None

    def wait_completed(self, batch_id: str, at_least: int) -> None:
        """Until so many lines have their result."""

        def far_enough() -> bool:
            batch = self.batch(batch_id)
            return batch is not None and batch.request_counts.completed >= at_least

        wait_until(far_enough, lambda: f"{self.batch(batch_id)}\n{self._stack.stderr()}", timeout_s=120)

    def outputs(self, batch_id: str) -> dict[str, str]:
        """Texts by custom id; each id is there once."""

        def ended() -> bool:
            batch = self.batch(batch_id)
            return batch is not None and batch.status in ("completed", "failed", "expired", "cancelled")

        wait_until(ended, lambda: f"{self.batch(batch_id)}\n{self._stack.stderr()}", timeout_s=180)
        batch = self.batch(batch_id)
        assert batch.status == "completed" and batch.error_file_id is None, batch
        lines = [json.loads(line) for line in self.openai.files.content(batch.output_file_id).text.splitlines()]
        assert Counter(line["custom_id"] for line in lines).most_common(1)[0][1] == 1
        return {line["custom_id"]: line["response"]["body"]["choices"][0]["text"] for line in lines}


def kill(stack: LocalStack, name: str) -> None:
    """SIGKILL, and wait until the supervisor has started another in its place."""
    pid = stack.pids()[name]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: stack.pids().get(name, pid) != pid, lambda: f"{name} was not restarted\n{stack.stderr()}")


@pytest.fixture
def undisturbed(sim_stack: LocalStack, tmp_path: Path) -> dict[str, str]:
    """What the batch's output is when nothing is killed."""
    client = Client(sim_stack)
    return client.outputs(client.submit(write_batch(tmp_path / "undisturbed.jsonl", LINES, 60)))


@pytest.fixture
def online_load(sim_stack: LocalStack) -> Iterator[Callable[[], int]]:
    """Completions one after the other while the test runs; a call gives how many have ended well so far."""
    done, stopping = 0, threading.Event()

    def load() -> None:
        nonlocal done
        while not stopping.is_set():
            try:
                body = {"model": MODEL, "prompt": "Once upon", "max_tokens": 20, "ignore_eos": True}
                response = httpx.post(f"{sim_stack.url}/v1/completions", json=body, timeout=60)
                done += response.status_code == 200
            except httpx.HTTPError:
                stopping.wait(0.1)  # the gateway is the one that was killed

    thread = threading.Thread(target=load)
    thread.start()
    yield lambda: done
    stopping.set()
    thread.join()


def test_each_line_has_one_result_whatever_is_killed(
    sim_stack: LocalStack, undisturbed: dict[str, str], online_load: Callable[[], int], tmp_path: Path
) -> None:
    client = Client(sim_stack)
    batch_id = client.submit(write_batch(tmp_path / "batch.jsonl", LINES, 60))
    for round_number, victim in enumerate((*VICTIMS, *VICTIMS), start=1):
        client.wait_completed(batch_id, at_least=LINES * round_number // 10)
        kill(sim_stack, victim)
    assert client.outputs(batch_id) == undisturbed
    assert len(undisturbed) == LINES
    before = online_load()
    wait_until(lambda: online_load() > before, lambda: "online requests no longer end")


@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_while_a_batch_is_taken_in(
    sim_stack: LocalStack, undisturbed: dict[str, str], tmp_path: Path, victim: str
) -> None:
    client = Client(sim_stack)
    batch_id = client.submit(write_batch(tmp_path / "batch.jsonl", LINES, 60))
    kill(sim_stack, victim)
    assert client.outputs(batch_id) == undisturbed


def test_a_stream_outlives_its_executor(sim_stack: LocalStack) -> None:
    request = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 300, "seed": 7, "temperature": 0.8}
    request |= {"extra_body": {"ignore_eos": True}}
    client = Client(sim_stack).openai
    sim_stack.wait_healthy()
    whole = client.completions.create(**request).choices[0].text
    pieces = []
    for number, chunk in enumerate(client.completions.create(stream=True, **request)):
        pieces.append(chunk.choices[0].text)
        if number == 40:
            os.kill(sim_stack.pids()["executor-0"], signal.SIGKILL)
    assert "".join(pieces) == whole


def test_online_goes_on_while_the_offline_queue_is_away(sim_stack: LocalStack) -> None:
    client = Client(sim_stack).openai
    sim_stack.wait_healthy()
    for _ in range(3):
        os.kill(sim_stack.pids()["offline-queue"], signal.SIGKILL)
        completion = client.completions.create(
            model=MODEL, prompt="Hello", max_tokens=30, extra_body={"ignore_eos": True}
        )
        assert completion.usage is not None and completion.usage.completion_tokens == 30
        sim_stack.wait_healthy()
