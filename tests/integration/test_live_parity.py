"""The live stack on a few layers of the real model: greedy answers equal transformers.generate, whatever they share
steps with."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from shared.text.tokenizer import Tokenizer
from tests.integration.conftest import MODEL, LocalStack
from tests.services.gateway.gateway_rig import wait_until

MAX_TOKENS = 20
SUBJECTS = (
    "the sea", "a red bicycle", "prime numbers", "winter in Norway", "bread", "the French revolution", "gravity",
    "a lost key", "jazz", "volcanoes", "the number seven", "honey bees", "chess", "rain", "an old library",
)  # fmt: skip


def make_prompts(seed: int, count: int) -> list[str]:
    """Varied lengths, some with a long shared beginning, so that chunks are cut and prefixes found."""
    rng = random.Random(seed)
    shared = "You are a careful assistant who answers in plain words and never repeats the question. " * 6
    prompts = []
    for number in range(count):
        subject = SUBJECTS[(number * 7 + seed) % len(SUBJECTS)]
        beginning = shared if number % 3 == 0 else f"Item {number} of list {seed}. " * rng.randint(1, 12)
        prompts.append(f"{beginning}Here is a short text about {subject}:")
    return prompts


@pytest.fixture(scope="module")
def expected(shallow_model: Path, tokenizer: Tokenizer) -> dict[str, str]:
    """Greedy continuations by transformers.generate, each prompt alone."""
    model: Any = AutoModelForCausalLM.from_pretrained(shallow_model, dtype=torch.float32).eval()
    texts = {}
    for prompt in (*make_prompts(1, 15), *make_prompts(2, 15)):
        ids = torch.tensor([tokenizer.encode(prompt)])
        with torch.inference_mode():
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False
            )
        texts[prompt] = tokenizer.decode(output[0, ids.shape[1] :].tolist())
    return texts


@pytest.fixture(scope="module")
def tight_stack(tmp_path_factory: pytest.TempPathFactory, shallow_model: Path) -> Iterator[LocalStack]:
    """The torch engine with so few KV blocks that requests lose theirs."""
    model = ("--model", str(shallow_model), "--served-model-name", MODEL)
    stack = LocalStack(tmp_path_factory.mktemp("stack"), *model, "--engine", "torch", "--kv-blocks", "40")
    try:
        stack.start()
        yield stack
    finally:
        stack.close()


@pytest.mark.slow
def test_greedy_equals_generate_alone_and_together(
    tight_stack: LocalStack, expected: dict[str, str], tmp_path: Path
) -> None:
    client = openai.OpenAI(base_url=f"{tight_stack.url}/v1", api_key="none", max_retries=0, timeout=120)

    def complete(prompt: str) -> str:
        completion = client.completions.create(model=MODEL, prompt=prompt, max_tokens=MAX_TOKENS, temperature=0)
        return completion.choices[0].text

    def stream(prompt: str) -> str:
        chunks = client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=MAX_TOKENS, temperature=0, stream=True
        )
        return "".join(chunk.choices[0].text for chunk in chunks)

    online, offline = make_prompts(1, 15), make_prompts(2, 15)
    assert {prompt: complete(prompt) for prompt in online[:5]} == {prompt: expected[prompt] for prompt in online[:5]}

    batch_id = submit(client, tmp_path / "batch.jsonl", offline * 2)
    with ThreadPoolExecutor(6) as threads:
        assert dict(zip(online, threads.map(stream, online), strict=True)) == {p: expected[p] for p in online}
    assert outputs(client, batch_id) == [expected[prompt] for prompt in offline * 2]

    counters = tight_stack.status()["executors"][0]["counters"]
    assert counters["preemptions"] > 0 and counters["cached_tokens"] > 0 and counters["steps_planned"] > 0


def submit(client: openai.OpenAI, path: Path, prompts: list[str]) -> str:
    with path.open("w") as file:
        for number, prompt in enumerate(prompts):
            body = {"model": MODEL, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
            line = {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    with path.open("rb") as file:
        uploaded = client.files.create(file=file, purpose="batch")
    return client.batches.create(input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h").id


def outputs(client: openai.OpenAI, batch_id: str) -> list[str]:
    wait_until(
        lambda: client.batches.retrieve(batch_id).status == "completed",
        lambda: str(client.batches.retrieve(batch_id)),
        timeout_s=180,
    )
    output_file_id = client.batches.retrieve(batch_id).output_file_id
    assert output_file_id is not None
    lines = [json.loads(line) for line in client.files.content(output_file_id).text.splitlines()]
    lines.sort(key=lambda line: int(line["custom_id"]))  # they come in the order in which they ended
    return [line["response"]["body"]["choices"][0]["text"] for line in lines]
