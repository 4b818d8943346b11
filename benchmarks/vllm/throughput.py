"""The torch engine beside vLLM's CPU build, step by step: ``python -m benchmarks.vllm.throughput``.

Each engine is in a process of its own with the same number of threads, float32 and blocks of 32 tokens: ours as an
executor runs it, vLLM's EngineCore with its own scheduler, its eager forward and the allocator that it comes with. They
take turns at the same work, so that both meet the same disturbances; the other one waits meanwhile. A decode is one
step of a batch whose requests all have the context; vLLM's DecodeBenchConnector puts the KV there, so no prompt is
computed. A prefill is a prompt in chunks of 512 tokens, with the token after it. Times of vLLM are those of whole steps
of its EngineCore, scheduling and sampling included; ours those of the engine's ``execute``, sampling included, of steps
that are made beforehand, since an executor's are planned while the one before runs. By the clock and in CPU time of all
threads; of all turns the fastest, since other processes only ever add to it.
"""

from __future__ import annotations

from services.executor.engines.torch.threads import cpu_count

# isort: split
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from benchmarks.engine.batches import block_tables, decode_step, prefill_step, prompt_of
from benchmarks.harness.command import run_command
from benchmarks.harness.model import DEFAULT_MODEL, ModelOption, model_folder
from benchmarks.harness.table import print_table
from benchmarks.harness.turns import Times

BLOCK_SIZE = 32
CHUNK_TOKENS = 512
BATCHES = (1, 8, 32, 64)
CONTEXTS = (128, 1024)
PROMPTS = (32, 128, 256, 512, 2048)
MAX_STEPS = 32  # of one decode case, in whose course vLLM's contexts grow
NUM_BLOCKS = max(BATCHES) * ((max(CONTEXTS) + MAX_STEPS) // BLOCK_SIZE + 1)
ENGINES = ("torch", "vllm")
THREADS = [1, cpu_count()]

Turn = Callable[[], list[int]]  # one run of a case; returns how many tokens each of its steps sampled


class Subject(Protocol):
    """An engine under measurement."""

    def decode(self, prompts: list[list[int]], max_steps: int) -> Turn:
        """What is returned runs one decode of all the prompts, whose KV is there but for the last token."""

    def prefill(self, prompt: list[int]) -> Turn:
        """What is returned runs the prompt to its first output token."""

    def finish(self) -> None:
        """End the requests of the last case."""


class TorchSubject:
    """Ours. Blocks are scattered over the pool."""

    def __init__(self, path: Path, num_threads: int) -> None:
        from services.executor.engines.torch.engine import TorchEngine

        pool = {"block_size": BLOCK_SIZE, "num_blocks": NUM_BLOCKS}
        self._engine = TorchEngine.load(path, "bench", device="cpu", dtype="float32", num_threads=num_threads, **pool)

    def decode(self, prompts: list[list[int]], max_steps: int) -> Turn:
        tables = block_tables(NUM_BLOCKS, len(prompts))
        num_blocks = -(-len(prompts[0]) // BLOCK_SIZE)
        last = [prompt[-1] for prompt in prompts]
        step = decode_step([table[:num_blocks] for table in tables], len(prompts[0]) - 1, last)
        return lambda: [len(self._engine.execute(step).sampled)]

    def prefill(self, prompt: list[int]) -> Turn:
        (blocks,) = block_tables(NUM_BLOCKS, 1)
        steps = [
            prefill_step(prompt, blocks[: -(-end // BLOCK_SIZE)], end - CHUNK_TOKENS, end)
            for end in range(CHUNK_TOKENS, len(prompt) + CHUNK_TOKENS, CHUNK_TOKENS)
        ]
        return lambda: [len(self._engine.execute(step).sampled) for step in steps]

    def finish(self) -> None:
        """Nothing is held between steps."""


@dataclass
class Turns(Times):
    """Of one engine at one case."""

    sampled: list[list[int]] = field(default_factory=list)  # tokens of each step of a turn


class Worker:
    """An engine in a process of its own, which does what it is told on its standard input."""

    def __init__(self, engine: str, path: Path, num_threads: int) -> None:
        command = [sys.executable, "-m", "benchmarks.vllm.throughput", "--worker", engine, "--model", str(path)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(num_threads)}
        if engine == "vllm":
            environment["LD_PRELOAD"] = bundled_allocator()
        self._process = subprocess.Popen(
            [*command, "--threads", str(num_threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, **order: object) -> Any:
        """Returns the answer. Raises RuntimeError where the process has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the engine's process ended with {self._process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(30)


def bundled_allocator() -> str:
    """The tcmalloc in vLLM's package, which its servers preload; empty where there is none."""
    found = importlib.util.find_spec("vllm")
    folder = Path(found.origin).parent if found is not None and found.origin is not None else Path()
    return str(next(iter(sorted((folder / "libs").glob("libtcmalloc*"))), ""))


def work(engine: str, path: Path, num_threads: int) -> None:
    """The other end of a ``Worker``. What libraries print goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    subject: Subject
    if engine == "torch":
        subject = TorchSubject(path, num_threads)
    else:
        from benchmarks.vllm.throughput_core import VllmSubject

        max_model_len = max(*PROMPTS, max(CONTEXTS) + MAX_STEPS) + BLOCK_SIZE
        subject = VllmSubject(path, BLOCK_SIZE, NUM_BLOCKS, max_model_len, CHUNK_TOKENS, max(BATCHES))
    run: Callable[[], list[int] | None] = subject.finish
    for line in sys.stdin:
        order = json.loads(line)
        if "decode" in order:
            run = subject.decode([prompt_of(order["context"], number) for number in range(order["decode"])], MAX_STEPS)
        elif "prefill" in order:
            run = subject.prefill(prompt_of(order["prefill"], 0))
        elif "finish" in order:
            run = subject.finish
        times = Times()
        sampled = times.time(run)
        answers.write(json.dumps((times.clock_ms[0], times.cpu_ms[0], sampled)) + "\n")
        answers.flush()


def measure(workers: dict[str, Worker], case: dict[str, int], runs: int) -> dict[str, Turns]:
    """``runs`` turns of each worker, after one that warms it up."""
    times = {name: Turns() for name in workers}
    for worker in workers.values():
        worker.ask(**case)
    for _ in range(runs):
        for name, worker in workers.items():
            wall_ms, cpu_ms, sampled = worker.ask(again=True)
            times[name].clock_ms.append(wall_ms)
            times[name].cpu_ms.append(cpu_ms)
            times[name].sampled.append(sampled)
    for worker in workers.values():
        worker.ask(finish=True)
    return times


def row(name: str, num_threads: int, num_tokens: int, times: dict[str, Turns]) -> list[str]:
    walls = [min(times[engine].clock_ms) for engine in ENGINES]
    cpus = [min(times[engine].cpu_ms) for engine in ENGINES]
    speeds = [f"{num_tokens / wall * 1e3:,.0f}" for wall in walls]
    milliseconds = [f"{value:.1f}" for value in (*walls, *cpus)]
    return [name, str(num_threads), *milliseconds, *speeds, f"{walls[1] / walls[0]:.2f}", f"{cpus[1] / cpus[0]:.2f}"]


def compare(path: Path, num_threads: int, runs: int) -> list[list[str]]:
    workers = {engine: Worker(engine, path, num_threads) for engine in ENGINES}
    rows = []
    try:
        for context in CONTEXTS:
            for batch in BATCHES:
                times = measure(workers, {"decode": batch, "context": context}, min(runs, MAX_STEPS - 2))
                rows.append(row(f"decode, batch {batch}, context {context}", num_threads, batch, times))
                print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
        for length in PROMPTS:
            times = measure(workers, {"prefill": length}, runs)
            rows.append(row(f"prefill, {length} tokens", num_threads, length, times))
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    finally:
        for worker in workers.values():
            worker.close()
    return rows


def main(
    threads: list[int] = THREADS,
    runs: Annotated[int, typer.Option(help="Per case.")] = 9,
    model: ModelOption = DEFAULT_MODEL,
    worker: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    if worker:
        work(worker, Path(model), threads[0])
        return
    path = model_folder(model)
    rows = [row for num_threads in dict.fromkeys(threads) for row in compare(path, num_threads, runs)]
    header = ("step", "threads", "ms", "vLLM ms", "CPU ms", "vLLM CPU ms", "tokens/s", "vLLM tokens/s")
    print_table((*header, "times as fast", "in CPU time"), rows)


if __name__ == "__main__":
    run_command(main)
