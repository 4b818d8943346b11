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
import os
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast
from unittest.mock import patch

import typer

from benchmarks.engine.batches import block_tables, decode_step, prefill_step, prompt_of
from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, Row, benchmark, formatted, model_folder
from benchmarks.harness.turns import Times

if TYPE_CHECKING:
    from benchmarks.vllm.throughput_core import VllmSubject

BLOCK_SIZE = 32
CHUNK_TOKENS = 512
BATCHES = (1, 8, 32, 64)
CONTEXTS = (128, 1024)
PROMPTS = (32, 128, 256, 512, 2048)
MAX_STEPS = 32  # of one decode case, in whose course vLLM's contexts grow
NUM_BLOCKS = max(BATCHES) * ((max(CONTEXTS) + MAX_STEPS) // BLOCK_SIZE + 1)
ENGINES = ("torch", "vllm")
THREADS = [1, cpu_count()]

Order = str | tuple[str | int, ...]  # ("decode", batch, context), ("prefill", tokens), "again", "finish"
Turn = Callable[[], list[int]]  # one run of a case; returns how many tokens each of its steps sampled


class TorchSubject:
    """Ours. Blocks are scattered over the pool."""

    def __init__(self, path: Path, num_threads: int) -> None:
        from services.executor.engines.torch.engine import TorchEngine

        pool = {"block_size": BLOCK_SIZE, "num_blocks": NUM_BLOCKS}
        self._engine = TorchEngine.load(path, "bench", device="cpu", dtype="float32", num_threads=num_threads, **pool)

    def decode(self, prompts: list[list[int]], max_steps: int) -> Turn:
        """One decode of all the prompts, whose KV is there but for the last token."""
        tables = block_tables(NUM_BLOCKS, len(prompts))
        num_blocks = -(-len(prompts[0]) // BLOCK_SIZE)
        last = [prompt[-1] for prompt in prompts]
        step = decode_step([table[:num_blocks] for table in tables], len(prompts[0]) - 1, last)
        return lambda: [len(self._engine.execute(step).sampled)]

    def prefill(self, prompt: list[int]) -> Turn:
        """The prompt to its first output token."""
        (blocks,) = block_tables(NUM_BLOCKS, 1)
        steps = [
            prefill_step(prompt, blocks[: -(-end // BLOCK_SIZE)], end - CHUNK_TOKENS, end)
            for end in range(CHUNK_TOKENS, len(prompt) + CHUNK_TOKENS, CHUNK_TOKENS)
        ]
        return lambda: [len(self._engine.execute(step).sampled) for step in steps]

    def finish(self) -> None:
        """End the requests of the last case: nothing is held between steps."""


class Worker:
    """An engine in a process of its own, which does what it is told."""

    def __init__(self, engine: str, path: Path, num_threads: int) -> None:
        environment = {"OMP_NUM_THREADS": str(num_threads)}
        if engine == "vllm":
            environment["LD_PRELOAD"] = bundled_allocator()
        context = get_context("spawn")
        self._orders, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, engine, path, num_threads))
        with patch.dict(os.environ, environment):
            self._process.start()
        theirs.close()

    def ask(self, order: Order) -> tuple[float, float, list[int]]:
        """Milliseconds by the clock and of CPU time, tokens of each step. Raises RuntimeError where it has ended."""
        try:
            self._orders.send(order)
            return cast(tuple[float, float, list[int]], self._orders.recv())
        except (EOFError, OSError):
            self._process.join()
            raise RuntimeError(f"the engine's process ended with {self._process.exitcode}") from None

    def close(self) -> None:
        self._orders.close()
        self._process.join(30)


def bundled_allocator() -> str:
    """The tcmalloc in vLLM's package, which its servers preload; empty where there is none."""
    found = importlib.util.find_spec("vllm")
    folder = Path(found.origin).parent if found is not None and found.origin is not None else Path()
    return str(next(iter(sorted((folder / "libs").glob("libtcmalloc*"))), ""))


def work(orders: Connection, engine: str, path: Path, num_threads: int) -> None:
    """The other end of a ``Worker``. What libraries print goes to the standard error."""
    os.dup2(2, 1)
    subject: TorchSubject | VllmSubject
    if engine == "torch":
        subject = TorchSubject(path, num_threads)
    else:
        from benchmarks.vllm.throughput_core import VllmSubject

        limits = {"block_size": BLOCK_SIZE, "num_gpu_blocks_override": NUM_BLOCKS, "max_num_seqs": max(BATCHES)}
        limits["max_model_len"] = max(*PROMPTS, max(CONTEXTS) + MAX_STEPS) + BLOCK_SIZE
        subject = VllmSubject(path, max_num_batched_tokens=CHUNK_TOKENS, **limits)
    run: Turn = list
    with contextlib.suppress(EOFError):  # the worker is closed
        while True:
            match orders.recv():
                case ("decode", batch, context):
                    run = subject.decode([prompt_of(context, number) for number in range(batch)], MAX_STEPS)
                case ("prefill", num_tokens):
                    run = subject.prefill(prompt_of(num_tokens))
                case "finish":
                    subject.finish()
                    run = list
            times = Times()
            sampled = times.time(run)
            orders.send((*times.clock_ms, *times.cpu_ms, sampled))


def measure(workers: dict[str, Worker], case: Order, runs: int) -> dict[str, Times]:
    """``runs`` turns of each worker, after one that warms it up."""
    times = {name: Times() for name in workers}
    for order in (case, *["again"] * runs, "finish"):
        for name, worker in workers.items():
            clock_ms, cpu_ms, _ = worker.ask(order)
            if order == "again":
                times[name].clock_ms.append(clock_ms)
                times[name].cpu_ms.append(cpu_ms)
    return times


def row(name: str, num_threads: int, num_tokens: int, times: dict[str, Times]) -> Row:
    wall, vllm_wall = (min(times[engine].clock_ms) for engine in ENGINES)
    cpu, vllm_cpu = (min(times[engine].cpu_ms) for engine in ENGINES)
    return {
        "step": name,
        "threads": str(num_threads),
        **formatted(".1f", {"ms": wall, "vLLM ms": vllm_wall, "CPU ms": cpu, "vLLM CPU ms": vllm_cpu}),
        **formatted(",.0f", {"tokens/s": num_tokens / wall * 1e3, "vLLM tokens/s": num_tokens / vllm_wall * 1e3}),
        **formatted(".2f", {"times as fast": vllm_wall / wall, "in CPU time": vllm_cpu / cpu}),
    }


def compare(path: Path, num_threads: int, runs: int) -> Results:
    workers = {engine: Worker(engine, path, num_threads) for engine in ENGINES}
    try:
        for context in CONTEXTS:
            for batch in BATCHES:
                times = measure(workers, ("decode", batch, context), min(runs, MAX_STEPS - 2))
                yield row(f"decode, batch {batch}, context {context}", num_threads, batch, times)
        for length in PROMPTS:
            times = measure(workers, ("prefill", length), runs)
            yield row(f"prefill, {length} tokens", num_threads, length, times)
    finally:
        for worker in workers.values():
            worker.close()


@benchmark
def main(
    threads: list[int] = THREADS,
    runs: Annotated[int, typer.Option(help="Per case.")] = 9,
    model: ModelOption = DEFAULT_MODEL,
) -> Results:
    path = model_folder(model)
    for num_threads in dict.fromkeys(threads):
        yield from compare(path, num_threads, runs)
