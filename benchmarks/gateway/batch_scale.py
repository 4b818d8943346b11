"""One large batch through the whole stack: ``python -m benchmarks.gateway.batch_scale``. Upload, validation, every
request on an executor with the simulated engine, output file; what each phase takes, and the most memory that each
process has in it. The engine is scaled so that it is not what is waited for.
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from tokenizers import Tokenizer

from benchmarks.harness.command import DEFAULT_MODEL, Results, benchmark, model_folder
from benchmarks.harness.stack import Stack, Usage, stack, usage_of, wait_until
from services.local.commands.server import ApiClient
from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.steps import StepStarted

ENDPOINT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
WORD_START = "\u0120"  # of a token that begins a word, in a byte-level vocabulary
PRESET = ("--preset", "sarathi++")  # no latency budget
ENGINE = ("--engine", "sim", "--kv-blocks", "32768", "--max-num-batched-tokens", "16384")
POLL_S, LONGEST_S = 0.2, 3600.0
UNENDED = ("validating", "in_progress", "finalizing", "cancelling")
Told = tuple[float, StepStarted]  # a step message, and when it came, in seconds
PHASES = {"validation": UNENDED[:1], "run": UNENDED[:2], "output file": UNENDED}  # with the statuses that end in it


def batch_stack(time_scale: str, *queue_options: str) -> AbstractContextManager[Stack]:
    """Ready to take batches. ``time_scale``: of the engine."""
    executor = (*PRESET, *ENGINE, "--sim-time-scale", time_scale)
    return stack(offline_queue=(*PRESET, *queue_options), executor=executor, gateway=())


def write_input(path: Path, num_lines: int, num_bytes: int, max_tokens: int) -> None:
    """So many lines, so many bytes together, as far as whole words allow: random words of the model's vocabulary, so
    that no two prompts share more than the template."""
    rng = random.Random(1)
    vocabulary = Tokenizer.from_file(str(model_folder() / "tokenizer.json")).get_vocab()
    words = sorted(token[1:] for token in vocabulary if token[0] == WORD_START and token[1:].isascii())
    with path.open("wb") as sink:
        for line in range(num_lines):
            message = {"role": "user", "content": ""}
            body = {"model": DEFAULT_MODEL, "messages": [message], "max_tokens": max_tokens, "ignore_eos": True}
            envelope = {"custom_id": f"request-{line}", "method": "POST", "url": ENDPOINT, "body": body}
            room = num_bytes // num_lines - len(json.dumps(envelope)) - 1
            message["content"] = " ".join(rng.choices(words, k=room // 3))[: max(1, room)]
            sink.write(json.dumps(envelope).encode() + b"\n")


def submit(client: ApiClient, source: Path) -> str:
    """Returns the batch's id."""
    file_id = client.upload(source, "batch")["id"]
    body = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
    return str(client.post("/v1/batches", body)["id"])


@asynccontextmanager
async def step_messages(nats_url: str) -> AsyncIterator[asyncio.Queue[Told]]:
    """Of all executors, as they come."""
    bus = await Bus.connect(nats_url, "benchmark")
    messages: asyncio.Queue[Told] = asyncio.Queue()

    async def on_step(step: StepStarted) -> None:
        messages.put_nowait((time.perf_counter(), step))

    await bus.subscribe(subjects.STEPS, StepStarted, on_step)
    await bus.flush()
    yield messages
    await bus.close()


def run(
    client: ApiClient, processes: Mapping[str, psutil.Process], source: Path, output: Path
) -> tuple[dict[str, Any], dict[str, Usage]]:
    """The batch at its end, and what its phases took."""
    batch: dict[str, Any] = {}
    taken: dict[str, Usage] = {}

    def has_left(statuses: tuple[str, ...]) -> bool:
        batch.update(client.get(f"/v1/batches/{batch['id']}"))
        print(batch["status"], batch["request_counts"], file=sys.stderr)
        return batch["status"] not in statuses

    with usage_of(processes) as taken["before"]:
        pass
    with usage_of(processes) as taken["upload"]:
        batch["id"] = submit(client, source)
    for name, statuses in PHASES.items():
        with usage_of(processes) as taken[name]:
            wait_until(partial(has_left, statuses), LONGEST_S, POLL_S)
    with usage_of(processes) as taken["download"]:
        if batch["output_file_id"]:
            client.download(batch["output_file_id"], output)
    return batch, taken


@benchmark
def main(
    lines: int = 50_000,
    mb: Annotated[int, typer.Option(help="Of the input file.")] = 200,
    max_tokens: int = 4,
    queue_options: Annotated[list[str] | None, typer.Argument(help="After --: options of the offline-queue.")] = None,
) -> Results:
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "input.jsonl", Path(folder) / "output.jsonl"
        write_input(source, lines, mb * 1000 * 1000, max_tokens)
        print(f"input: {source.stat().st_size} bytes", file=sys.stderr)
        with batch_stack("0.0001", *(queue_options or [])) as running, ApiClient(running.url) as client:
            processes = dict(running.processes)
            batch, taken = run(client, processes, source, output)
    print(json.dumps({name: batch[name] for name in ("status", "request_counts", "usage")}), file=sys.stderr)
    for name, usage in taken.items():
        used = {f"{each}: MiB / CPU s": f"{usage.most_mib[each]:.0f} / {usage.cpu_s[each]:.0f}" for each in processes}
        yield {"phase": name, "s": f"{usage.seconds:.1f}", **used}
