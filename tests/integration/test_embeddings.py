"""Embeddings by the real model: a whole stack, asked by the official client, against transformers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from shared.text.tokenizer import Tokenizer
from tests.integration.conftest import MODEL, LocalStack
from tests.services.gateway.gateway_rig import wait_until

STEM = "Rivers carry water from the mountains to the sea. " * 12
TEXTS = [STEM + "Salt stays behind.", STEM + "Fish swim upstream.", "A cat", "Seven bridges over a cold river"]
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    stack = LocalStack(tmp_path_factory.mktemp("stack"), "--engine", "torch", "--preset", "sarathi++")
    try:
        stack.start()
        with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
            yield made
    finally:
        stack.close()


@pytest.fixture(scope="module")
def expected(model_folder: Path) -> list[list[float]]:
    """The last token's state behind the last norm, of length 1."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_folder(model_folder)
    with torch.inference_mode():
        states = [model.model(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0, -1] for text in TEXTS]
        return [F.normalize(state, dim=0).tolist() for state in states]


def test_online_and_in_a_batch_they_are_transformers_own(client: openai.OpenAI, expected: list[list[float]]) -> None:
    """Once computed whole, and once over what is cached of it."""
    for _ in range(2):
        online = client.embeddings.create(model=MODEL, input=TEXTS)
        for each, wanted in zip(online.data, expected, strict=True):
            assert each.embedding == pytest.approx(wanted, abs=TOLERANCE)
    details = (online.usage.model_extra or {})["prompt_tokens_details"]
    assert details["cached_tokens"] > 200
    for each, wanted in zip(in_a_batch(client), expected, strict=True):
        assert each == pytest.approx(wanted, abs=TOLERANCE)


def in_a_batch(client: openai.OpenAI) -> list[list[float]]:
    url = "/v1/embeddings"
    lines = [
        {"custom_id": str(number), "method": "POST", "url": url, "body": {"model": MODEL, "input": text}}
        for number, text in enumerate(TEXTS)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    uploaded = client.files.create(file=("texts.jsonl", content), purpose="batch")
    made = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/embeddings", completion_window="24h")
    wait_until(lambda: client.batches.retrieve(made.id).status == "completed", "the batch has no end", 120)
    file_id = client.batches.retrieve(made.id).output_file_id
    assert file_id is not None
    done = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    done.sort(key=lambda line: int(line["custom_id"]))
    return [line["response"]["body"]["data"][0]["embedding"] for line in done]
