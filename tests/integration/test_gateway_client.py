"""The official client against a whole stack with the real model: chat, text, embeddings, files and a batch."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import torch.nn.functional as F
from openai.types import Batch
from transformers import AutoModelForCausalLM

from shared.text.tokenizer import Tokenizer
from tests.integration.conftest import MODEL, LocalStack
from tests.services.gateway.gateway_rig import wait_until

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
BATCH_WAIT_S = 120.0
STEM = "Rivers carry water from the mountains to the sea. " * 12
TEXTS = [STEM + "Salt stays behind.", STEM + "Fish swim upstream.", "A cat", "Seven bridges over a cold river"]
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    stack = LocalStack(tmp_path_factory.mktemp("stack"), "--engine", "torch")
    try:
        stack.start()
        with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
            yield made
    finally:
        stack.close()


def test_the_model_answers_paris_streamed_and_whole(client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 32}
    whole = client.chat.completions.create(**options)
    answer = whole.choices[0].message.content
    assert answer is not None and "Paris" in answer
    assert whole.choices[0].finish_reason == "stop"
    chunks = client.chat.completions.create(**options, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer


def test_a_seed_gives_the_same_sample_again(client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "messages": QUESTION, "temperature": 1, "max_tokens": 8}
    texts = [client.chat.completions.create(**options, seed=seed).choices[0].message.content for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


def test_a_text_is_continued_up_to_a_stop_string(client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "prompt": "One, two, three, four,", "temperature": 0, "max_tokens": 24}
    full = client.completions.create(**options).choices[0].text
    assert "five" in full and "six" in full
    cut = client.completions.create(**options, stop=[" six"]).choices[0]
    assert (cut.text, cut.finish_reason) == (full[: full.index(" six")], "stop")


def test_a_batch_goes_from_upload_to_output_file(client: openai.OpenAI) -> None:
    body = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 32}
    online = client.chat.completions.create(**body)  # type: ignore[call-overload]
    lines: list[dict[str, Any]] = [
        {"custom_id": f"line-{index}", "method": "POST", "url": "/v1/chat/completions", "body": body | {"seed": index}}
        for index in range(4)
    ]
    contents = "\n".join(json.dumps(line) for line in lines).encode()
    uploaded = client.files.create(file=("questions.jsonl", contents), purpose="batch")
    made = client.batches.create(
        input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
    )
    batch = wait_for_end(client, made.id)
    assert (batch.status, batch.error_file_id, batch.metadata) == ("completed", None, {"a": "b"})
    assert batch.request_counts is not None and batch.request_counts.completed == len(lines)
    assert batch.output_file_id is not None
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"
    output = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert sorted(line["custom_id"] for line in output) == [line["custom_id"] for line in lines]
    answers = {line["response"]["body"]["choices"][0]["message"]["content"] for line in output}
    assert answers == {online.choices[0].message.content}


@pytest.fixture(scope="module")
def embeddings_of_transformers(model_folder: Path) -> list[list[float]]:
    """The last token's state behind the last norm, of length 1."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_folder(model_folder)
    with torch.inference_mode():
        states = [model.model(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0, -1] for text in TEXTS]
        return [F.normalize(state, dim=0).tolist() for state in states]


def test_embeddings_online_and_in_a_batch_are_transformers_own(
    client: openai.OpenAI, embeddings_of_transformers: list[list[float]]
) -> None:
    """Once computed whole, and once over what is cached of it."""
    for _ in range(2):
        online = client.embeddings.create(model=MODEL, input=TEXTS)
        for each, wanted in zip(online.data, embeddings_of_transformers, strict=True):
            assert each.embedding == pytest.approx(wanted, abs=TOLERANCE)
    details = (online.usage.model_extra or {})["prompt_tokens_details"]
    assert details["cached_tokens"] > 200
    for each, wanted in zip(embedded_in_a_batch(client), embeddings_of_transformers, strict=True):
        assert each == pytest.approx(wanted, abs=TOLERANCE)


def embedded_in_a_batch(client: openai.OpenAI) -> list[list[float]]:
    url = "/v1/embeddings"
    lines = [
        {"custom_id": str(number), "method": "POST", "url": url, "body": {"model": MODEL, "input": text}}
        for number, text in enumerate(TEXTS)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    uploaded = client.files.create(file=("texts.jsonl", content), purpose="batch")
    made = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/embeddings", completion_window="24h")
    batch = wait_for_end(client, made.id)
    assert batch.status == "completed" and batch.output_file_id is not None
    done = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    done.sort(key=lambda line: int(line["custom_id"]))
    return [line["response"]["body"]["data"][0]["embedding"] for line in done]


def wait_for_end(client: openai.OpenAI, batch_id: str) -> Batch:
    """The batch, once it has ended one way or the other."""
    batch = client.batches.retrieve(batch_id)

    def ended() -> bool:
        nonlocal batch
        batch = client.batches.retrieve(batch_id)
        return batch.status in ("completed", "failed", "expired", "cancelled")

    wait_until(ended, lambda: batch.model_dump_json(), BATCH_WAIT_S)
    return batch
