"""Executors of two pools in processes of their own, with the torch engine and the default model: streams through the
gateway go on from one to the other, token for token as with one mixed executor; also while one of them is killed."""

import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import httpx
import pytest

from tests.integration.conftest import MODEL, LocalStack
from tests.services.gateway.gateway_rig import GatewayRig, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("nixl") is None, reason="NIXL is not installed"),
]

NUM_STREAMS, AT_A_TIME = 24, 6
OPTIONS = ("--threads", "1", "--kv-blocks", "600")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    running = LocalStack(
        tmp_path_factory.mktemp("pools"), *OPTIONS, "--executors", "2", "--strict", "1", "--preset", "ooco"
    )
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """From one mixed executor."""
    with GatewayRig(tmp_path_factory.mktemp("mixed")) as alone:
        alone.start_executor("executor-0", "--engine", "torch", *OPTIONS)
        alone.start_gateway()
        alone.wait_ready()
        return all_texts(alone.url)


def body(number: int) -> dict[str, Any]:
    """Prompts of other lengths, so that some blocks are full and others are not; some sampled, by a seed."""
    prompt = " ".join(f"Item {number} of list {each} is number {each * 7 + number}." for each in range(1 + number % 9))
    return {
        "model": MODEL,
        "prompt": f"{prompt} The next item is",
        "max_tokens": 24 + 5 * (number % 7),
        "temperature": 0.0 if number % 2 else 0.7,
        "seed": number,
        "ignore_eos": True,
        "stream": True,
    }


def text_of(url: str, number: int, on_token: Callable[[], None] = lambda: None) -> str:
    text = ""
    with httpx.stream("POST", f"{url}/v1/completions", json=body(number), timeout=240) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                text += "".join(choice["text"] for choice in event["choices"])
                on_token()
    return text


def all_texts(url: str, on_token: Callable[[], None] = lambda: None) -> list[str]:
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        return list(threads.map(lambda number: text_of(url, number, on_token), range(NUM_STREAMS)))


def counters(stack: LocalStack) -> dict[str, dict[str, float]]:
    """By executor id."""
    status = json.loads(stack.run("status", "--json").stdout)
    return {each["info"]["executor_id"]: each["counters"] for each in status["executors"]}


def test_streams_go_on_at_the_strict_one(stack: LocalStack, expected: list[str]) -> None:
    assert all_texts(stack.url) == expected
    wait_until(lambda: counters(stack)["executor-1"]["handed_over"] == NUM_STREAMS, stack.stderr)
    strict = counters(stack)["executor-0"]
    assert (strict["taken_over"], strict["prompt_tokens"], strict["preemptions"]) == (NUM_STREAMS, 0, 0)


@pytest.mark.slow  # the killed one loads its model anew
@pytest.mark.parametrize("victim", ["executor-0", "executor-1"])
def test_streams_survive_either_of_the_two(stack: LocalStack, expected: list[str], victim: str) -> None:
    """One is killed while requests move."""
    tokens, enough = itertools.count(1), threading.Event()

    def on_token() -> None:
        if next(tokens) == 40:
            enough.set()

    with ThreadPoolExecutor(1) as thread:
        texts = thread.submit(all_texts, stack.url, on_token)
        assert enough.wait(120), stack.stderr()
        os.kill(stack.pids()[victim], signal.SIGKILL)
        assert texts.result() == expected
    stack.wait_healthy()
