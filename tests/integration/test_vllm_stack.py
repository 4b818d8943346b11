"""A whole stack on the vLLM engine: streams, stop strings, seeds, a batch, aborts, and its executor killed."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.integration.conftest import MODEL, LocalStack
from tests.services.gateway.gateway_rig import wait_until
from tests.with_vllm import WITH_VLLM

pytestmark = WITH_VLLM

PROMPT = "Once upon a time"
SAMPLED = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "seed": 7, "temperature": 0.8, "ignore_eos": True}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Without a latency budget: a busy machine would leave offline work none."""
    options = ("--engine", "vllm", "--kv-blocks", "32", "--threads", "1", "--preset", "sarathi++")
    running = LocalStack(tmp_path_factory.mktemp("stack"), *options)
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture
def client(stack: LocalStack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=120)


def complete(stack: LocalStack, **options: Any) -> dict[str, Any]:
    """One choice, as JSON."""
    response = httpx.post(f"{stack.url}/v1/completions", json=SAMPLED | options, timeout=120)
    response.raise_for_status()
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def executor(stack: LocalStack) -> dict[str, Any]:
    """What the executor says of itself."""
    (beat,) = stack.status()["executors"]
    found: dict[str, Any] = beat
    return found


def test_the_executor_is_vllm(stack: LocalStack) -> None:
    info = stack.wait_healthy()["executors"][0]["info"]
    assert (info["spec"]["engine"], info["spec"]["block_size"], info["spec"]["num_blocks"]) == ("vllm", 32, 32)


def test_chat_streams_the_answer_that_it_gives_at_once(client: openai.OpenAI) -> None:
    question: Any = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    question |= {"temperature": 0.0, "max_tokens": 24}
    whole = client.chat.completions.create(**question).choices[0]
    assert whole.finish_reason in ("stop", "length") and "Paris" in (whole.message.content or "")
    pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(stream=True, **question)]
    assert len(pieces) > 3 and "".join(pieces) == whole.message.content


def test_seeds_and_stop_strings(stack: LocalStack) -> None:
    text = complete(stack)["text"]
    assert complete(stack)["text"] == text != complete(stack, seed=8)["text"]
    stop = text[len(text) // 2 :].split()[0]
    stopped = complete(stack, stop=[stop])
    assert stopped["finish_reason"] == "stop" and stopped["text"] == text[: text.index(stop)]


def test_a_prompt_that_was_there_before_is_found_in_the_cache(stack: LocalStack) -> None:
    prompt = "The committee met on Tuesday to discuss the budget. " * 12
    first = complete(stack, prompt=prompt)["text"]
    before = executor(stack)["counters"]["cached_tokens"]
    assert complete(stack, prompt=prompt)["text"] == first
    wait_until(lambda: executor(stack)["counters"]["cached_tokens"] >= before + 96, what=stack.stderr)


def test_a_stream_that_nobody_reads_is_aborted(stack: LocalStack, client: openai.OpenAI) -> None:
    before = executor(stack)["counters"]["aborted"]
    stream = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=600, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    wait_until(lambda: executor(stack)["counters"]["aborted"] > before, what=stack.stderr)


def test_a_batch_beside_online_requests_under_memory_pressure(
    stack: LocalStack, client: openai.OpenAI, tmp_path: Path
) -> None:
    """Twelve lines do not fit the KV blocks at once, and online requests take blocks from them: all the same, each
    line's output is what it is alone."""
    body = SAMPLED | {"prompt": "The inventory of the old house by the river " * 8, "max_tokens": 30}
    lines = [
        {"custom_id": f"line-{n}", "method": "POST", "url": "/v1/completions", "body": body | {"seed": n % 4}}
        for n in range(12)
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with source.open("rb") as file:
        uploaded = client.files.create(file=file, purpose="batch")
    batch_id = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h").id
    online = complete(stack, prompt="Write a long story. " * 60, max_tokens=40)["text"]
    wait_until(lambda: client.batches.retrieve(batch_id).status == "completed", what=stack.stderr, timeout_s=180)
    content = client.files.content(client.batches.retrieve(batch_id).output_file_id or "").text
    outputs = [json.loads(line) for line in content.splitlines()]
    texts = {each["custom_id"]: each["response"]["body"]["choices"][0]["text"] for each in outputs}
    alone = [complete(stack, **(body | {"seed": seed}))["text"] for seed in range(4)]
    assert texts == {f"line-{n}": alone[n % 4] for n in range(12)}
    assert complete(stack, prompt="Write a long story. " * 60, max_tokens=40)["text"] == online


@pytest.mark.slow
def test_a_stream_outlives_its_executor(stack: LocalStack, client: openai.OpenAI) -> None:
    stack.wait_healthy()
    whole = complete(stack, max_tokens=120)["text"]
    request: Any = {key: value for key, value in SAMPLED.items() if key != "ignore_eos"} | {"max_tokens": 120}
    pieces = []
    for number, chunk in enumerate(client.completions.create(stream=True, extra_body={"ignore_eos": True}, **request)):
        pieces.append(chunk.choices[0].text)
        if number == 20:
            os.kill(stack.pids()["executor-0"], signal.SIGKILL)
    assert "".join(pieces) == whole
    assert "request resumed" in (stack.data_dir / "logs" / "gateway.log").read_text()
