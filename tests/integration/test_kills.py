"""Real processes killed with SIGKILL under load: no line of a batch is lost, none has two results, and a stream whose
executor dies goes on. With the sim engine, whose seeds fix every token, and with vLLM, greedily."""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.integration.conftest import MODEL, LocalStack
from tests.services.gateway.gateway_rig import wait_until
from tests.with_vllm import WITH_VLLM

VICTIMS = ("offline-queue", "executor-0", "gateway")


@dataclass(frozen=True)
class Load:
    """What an engine is given to do. ``options``: of its stack."""

    options: tuple[str, ...]
    num_lines: int
    max_tokens: int  # of a line
    temperature: float


LOADS = {
    "sim": Load(("--engine", "sim"), 120, 60, 0.8),
    "vllm": Load(
        ("--engine", "vllm", "--kv-blocks", "64", "--threads", "1", "--preset", "sarathi++"), 24, 16, temperature=0.0
    ),
}


@pytest.fixture(scope="module", params=["sim", pytest.param("vllm", marks=WITH_VLLM)])
def load(request: pytest.FixtureRequest) -> Load:
    return LOADS[request.param]


@pytest.fixture(scope="module")
def stack(load: Load, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """A ready stack, for all tests with its engine."""
    running = LocalStack(tmp_path_factory.mktemp("stack"), *load.options)
    try:
        running.start()
        yield running
    finally:
        running.close()


def write_batch(path: Path, load: Load) -> Path:
    """Each line has its own seed, so that its output is the same whenever and wherever it runs."""
    with path.open("w") as file:
        for number in range(load.num_lines):
            body = {
                "model": MODEL,
                "prompt": f"Item {number} of the inventory is a",
                "max_tokens": load.max_tokens,
                "seed": number,
                "temperature": load.temperature,
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


def num_resumed(stack: LocalStack) -> int:
    """Requests that have gone on after their executor was lost, so far."""
    return (stack.data_dir / "logs" / "gateway.log").read_text().count("request resumed")


@pytest.fixture(scope="module")
def undisturbed(stack: LocalStack, load: Load, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the batch's output is when nothing is killed."""
    client = Client(stack)
    return client.outputs(client.submit(write_batch(tmp_path_factory.mktemp("batch") / "undisturbed.jsonl", load)))


@pytest.fixture
def online_load(stack: LocalStack) -> Iterator[Callable[[], int]]:
    """Completions one after the other while the test runs; a call gives how many have ended well so far."""
    done, stopping = 0, threading.Event()

    def complete() -> None:
        nonlocal done
        while not stopping.is_set():
            try:
                body = {"model": MODEL, "prompt": "Once upon", "max_tokens": 20, "ignore_eos": True}
                response = httpx.post(f"{stack.url}/v1/completions", json=body, timeout=60)
                done += response.status_code == 200
            except httpx.HTTPError:
                stopping.wait(0.1)  # the gateway is the one that was killed

    thread = threading.Thread(target=complete)
    thread.start()
    yield lambda: done
    stopping.set()
    thread.join()


def test_each_line_has_one_result_whatever_is_killed(
    stack: LocalStack, load: Load, undisturbed: dict[str, str], online_load: Callable[[], int], tmp_path: Path
) -> None:
    client = Client(stack)
    batch_id = client.submit(write_batch(tmp_path / "batch.jsonl", load))
    for round_number, victim in enumerate((*VICTIMS, *VICTIMS), start=1):
        client.wait_completed(batch_id, at_least=load.num_lines * round_number // 10)
        kill(stack, victim)
    assert client.outputs(batch_id) == undisturbed
    assert len(undisturbed) == load.num_lines
    before = online_load()
    wait_until(lambda: online_load() > before, lambda: "online requests no longer end")


@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_while_a_batch_is_taken_in(
    stack: LocalStack, load: Load, undisturbed: dict[str, str], tmp_path: Path, victim: str
) -> None:
    client = Client(stack)
    batch_id = client.submit(write_batch(tmp_path / "batch.jsonl", load))
    kill(stack, victim)
    assert client.outputs(batch_id) == undisturbed


def test_a_stream_outlives_its_executor(stack: LocalStack, load: Load) -> None:
    num_tokens = 5 * load.max_tokens
    request: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": num_tokens, "seed": 7}
    request |= {"temperature": load.temperature, "extra_body": {"ignore_eos": True}}
    client = Client(stack).openai
    stack.wait_healthy()
    whole = client.completions.create(**request).choices[0].text
    pieces, before = [], num_resumed(stack)
    for number, chunk in enumerate(client.completions.create(stream=True, **request)):
        pieces.append(chunk.choices[0].text)
        if number == num_tokens // 8:
            os.kill(stack.pids()["executor-0"], signal.SIGKILL)
    assert "".join(pieces) == whole
    assert num_resumed(stack) > before


@pytest.mark.slow
def test_online_goes_on_while_the_offline_queue_is_away(stack: LocalStack) -> None:
    client = Client(stack).openai
    stack.wait_healthy()
    for _ in range(3):
        os.kill(stack.pids()["offline-queue"], signal.SIGKILL)
        completion = client.completions.create(
            model=MODEL, prompt="Hello", max_tokens=30, extra_body={"ignore_eos": True}
        )
        assert completion.usage is not None and completion.usage.completion_tokens == 30
        stack.wait_healthy()
