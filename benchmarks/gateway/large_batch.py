"""Batches of OpenAI's largest size: their input, and a stack that runs them."""

import json
import random
from contextlib import AbstractContextManager
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.harness.command import DEFAULT_MODEL, model_folder
from benchmarks.harness.stack import Stack, stack
from services.local.commands.server import ApiClient

ENDPOINT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
WORD_START = "\u0120"  # of a token that begins a word, in a byte-level vocabulary
ENGINE = ("--engine", "sim", "--kv-blocks", "32768", "--max-num-batched-tokens", "16384")


def batch_stack(time_scale: str, *queue_options: str) -> AbstractContextManager[Stack]:
    """Ready to take batches. ``time_scale``: of the engine."""
    preset = ("--preset", "sarathi++")
    executor = (*preset, *ENGINE, "--sim-time-scale", time_scale)
    return stack(offline_queue=(*preset, *queue_options), executor=executor, gateway=())


def write_input(path: Path, num_lines: int, num_bytes: int, max_tokens: int) -> None:
    """So many lines, so many bytes together, as far as whole words allow: random words of the model's vocabulary, so
    that no two prompts share more than the template."""
    rng = random.Random(1)
    vocabulary = Tokenizer.from_file(str(model_folder() / "tokenizer.json")).get_vocab()
    words = sorted(token[1:] for token in vocabulary if token[0] == WORD_START and token[1:].isascii())
    with path.open("wb") as sink:
        for line in range(num_lines):
            message = {"role": "user", "content": ""}
            body = {"model": DEFAULT_MODEL, "messages": [message], "max_tokens": max_tokens}
            envelope = {"custom_id": f"request-{line}", "method": "POST", "url": ENDPOINT, "body": body}
            room = num_bytes // num_lines - len(json.dumps(envelope)) - 1
            message["content"] = " ".join(rng.choices(words, k=room // 3))[: max(1, room)]
            sink.write(json.dumps(envelope).encode() + b"\n")


def submit(client: ApiClient, source: Path) -> str:
    """Returns the batch's id."""
    file_id = client.upload(source, "batch")["id"]
    body = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
    return str(client.post("/v1/batches", body)["id"])
