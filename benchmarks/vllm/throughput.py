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
import importlib.util
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
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

Order = (
    str | tuple[str, int] | tuple[str, int, int]
)  # ("decode", batch, context), ("prefill", tokens), "again", "finish"
Turn = Callable[[], list[int]]  # one run of a case; returns how many tokens each of its steps sampled
Worker = Callable[[Order], tuple[Times, list[int]]]  # takes one turn, the case's first or one more


class TorchSubject:
    """Ours. Blocks are scattered over the pool."""

    turn: Turn = list  # of the case at hand

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


@contextmanager
def worker(engine: str, path: Path, num_threads: int) -> Iterator[Worker]:
    """An engine in a process of its own. Raises what the engine raises, BrokenProcessPool where its process ends."""
    environment = {"OMP_NUM_THREADS": str(num_threads)}
    if engine == "vllm":
        environment["LD_PRELOAD"] = bundled_allocator()
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        with patch.dict(os.environ, environment):
            process.submit(os.getpid).result()  # it starts with what it is given first
        yield lambda order: process.submit(obey, engine, path, num_threads, order).result()


def bundled_allocator() -> str:
    """The tcmalloc in vLLM's package, which its servers preload; empty where there is none."""
    found = importlib.util.find_spec("vllm")
    folder = Path(found.origin).parent if found is not None and found.origin is not None else Path()
    return str(next(iter(sorted((folder / "libs").glob("libtcmalloc*"))), ""))


@cache
def subject_of(engine: str, path: Path, num_threads: int) -> TorchSubject | VllmSubject:
    """In its process, whose libraries print to the standard error."""
    os.dup2(2, 1)
    if engine == "torch":
        return TorchSubject(path, num_threads)
    from benchmarks.vllm.throughput_core import VllmSubject

    limits = {"block_size": BLOCK_SIZE, "num_gpu_blocks_override": NUM_BLOCKS, "max_num_seqs": max(BATCHES)}
    limits["max_model_len"] = max(*PROMPTS, max(CONTEXTS) + MAX_STEPS) + BLOCK_SIZE
    return VllmSubject(path, max_num_batched_tokens=CHUNK_TOKENS, **limits)


def obey(engine: str, path: Path, num_threads: int, order: Order) -> tuple[Times, list[int]]:
    """In the engine's process: one turn, and how many tokens each of its steps sampled."""
    subject, times = subject_of(engine, path, num_threads), Times()
    match order:
        case ("decode", batch, context):
            subject.turn = subject.decode([prompt_of(context, number) for number in range(batch)], MAX_STEPS)
        case ("prefill", num_tokens):
            subject.turn = subject.prefill(prompt_of(num_tokens))
        case "finish":
            subject.finish()
            subject.turn = list
    return times, times.time(subject.turn)


def measure(workers: dict[str, Worker], case: Order, runs: int) -> dict[str, Times]:
    """``runs`` turns of each worker, after one that warms it up."""
    times = {name: Times() for name in workers}
    for order in (case, *["again"] * runs, "finish"):
        for name, take in workers.items():
            taken, _ = take(order)
            if order == "again":
                times[name].clock_ms += taken.clock_ms
                times[name].cpu_ms += taken.cpu_ms
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
    with ExitStack() as started:
        workers = {engine: started.enter_context(worker(engine, path, num_threads)) for engine in ENGINES}
        for context in CONTEXTS:
            for batch in BATCHES:
                times = measure(workers, ("decode", batch, context), min(runs, MAX_STEPS - 2))
                yield row(f"decode, batch {batch}, context {context}", num_threads, batch, times)
        for length in PROMPTS:
            times = measure(workers, ("prefill", length), runs)
            yield row(f"prefill, {length} tokens", num_threads, length, times)


@benchmark
def main(
    threads: list[int] = THREADS,
    runs: Annotated[int, typer.Option(help="Per case.")] = 9,
    model: ModelOption = DEFAULT_MODEL,
) -> Results:
    path = model_folder(model)
    for num_threads in dict.fromkeys(threads):
        yield from compare(path, num_threads, runs)
