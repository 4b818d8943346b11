"""Batches of OpenAI's largest size: their input, and a stack that runs them."""

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.harness.command import DEFAULT_MODEL, model_folder
from benchmarks.harness.stack import Stack, stack
from services.local.commands.server import ApiClient

ENDPOINT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
WORD_START = "\u0120"  # of a token that begins a word, in a byte-level vocabulary
ENGINE = ("--engine", "sim", "--kv-blocks", "32768", "--max-num-batched-tokens", "16384")


@contextlib.contextmanager
def batch_stack(queue_options: list[str], time_scale: str) -> Iterator[Stack]:
    """Ready to take batches. ``time_scale``: of the engine."""
    with stack() as running:
        running.start("offline-queue", "--preset", "sarathi++", *queue_options)
        running.start("executor", "--preset", "sarathi++", *ENGINE, "--sim-time-scale", time_scale)
        running.start("gateway")
        running.wait_ready()
        yield running


def write_input(path: Path, num_lines: int, num_bytes: int, max_tokens: int) -> None:
    """So many lines, so many bytes together, as far as whole words allow: random words of the model's vocabulary, so
    that no two prompts share more than the template."""
    rng = random.Random(1)
    vocabulary = Tokenizer.from_file(str(model_folder() / "tokenizer.json")).get_vocab()
    words = sorted(token[1:] for token in vocabulary if token[0] == WORD_START and token[1:].isascii())
    with path.open("wb") as sink:
        for line in range(num_lines):
            body = {"model": DEFAULT_MODEL, "messages": [{"role": "user", "content": ""}], "max_tokens": max_tokens}
            envelope = {"custom_id": f"request-{line}", "method": "POST", "url": ENDPOINT, "body": body}
            room = num_bytes // num_lines - len(json.dumps(envelope)) - 1
            text = " ".join(rng.choices(words, k=room // 3))[: max(1, room)]
            body["messages"] = [{"role": "user", "content": text}]
            sink.write(json.dumps(envelope).encode() + b"\n")


def submit(client: ApiClient, source: Path) -> str:
    """Returns the batch's id."""
    file_id = client.upload(source, "batch")["id"]
    body = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
    return str(client.post("/v1/batches", body)["id"])
