"""vLLM's model on its own attention and on ours: ``python -m benchmarks.vllm.attention``.

Two engines in one process run the same step in turns, decodes going on from turn to turn; on ours requests fill their
blocks from the left, from the right, or every other one so. Medians of CPU time, which leaves out what else the machine
does, and of the clock. Blocks are scattered over the pool.
"""

from __future__ import annotations

from services.executor.engines.torch.threads import cpu_count

# isort: split
import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness.table import print_table
from services.executor.engines.factory import load_engine
from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from services.executor.settings import OWN_ATTENTION, ExecutorSettings
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Engine, Sequence, StepBatch

CONTEXT = 256
BATCHES = (1, 8, 32)
CHUNKS = (128, 512)
BLOCK_SIZE = 32
GREEDY = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)

Direction = Callable[[int], bool]
Steps = Iterator[None]
DIRECTIONS: dict[str, Direction] = {
    "left": lambda number: False,
    "right": lambda number: True,
    "mixed": lambda number: number % 2 == 1,
}


def load(path: Path, attention: str, threads: int, dtype: str) -> Engine:
    settings = ExecutorSettings(
        str(path),
        engine="vllm",
        dtype=dtype,
        threads=threads,
        kv_blocks=max(BATCHES) * (2 * CONTEXT // BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=max(CHUNKS),
        vllm_attention=attention,
    )
    return load_engine(settings)


def tables(engine: Engine) -> list[list[int]]:
    """For each request of the largest batch."""
    spec = engine.spec
    scattered = random.Random(0).sample(range(spec.num_blocks), spec.num_blocks)
    size = spec.num_blocks // max(BATCHES)
    return [scattered[number * size : (number + 1) * size] for number in range(max(BATCHES))]


def decodes(engine: Engine, num_rows: int, fills_right: Direction) -> Steps:
    """Steps of one token each behind CONTEXT tokens; the prompts are run before the first."""
    blocks = tables(engine)
    sampled: dict[str, int] = {}
    for number in range(num_rows):
        prompt = [(number * 7919 + i * 31) % engine.spec.vocab_size for i in range(CONTEXT)]
        request = Sequence(f"r{number}", prompt, 0, blocks[number], GREEDY, True, fills_right(number))
        sampled |= engine.execute(StepBatch(0, [request])).sampled
    computed = CONTEXT
    while True:
        yield
        batch = [
            Sequence(f"r{n}", [sampled[f"r{n}"]], computed, blocks[n], GREEDY, True, fills_right(n))
            for n in range(num_rows)
        ]
        sampled = engine.execute(StepBatch(computed, batch)).sampled
        computed += 1


def prefills(engine: Engine, num_tokens: int, fills_right: Direction) -> Steps:
    prompt = [i * 31 % engine.spec.vocab_size for i in range(num_tokens)]
    blocks = tables(engine)[0]
    while True:
        yield
        engine.execute(StepBatch(0, [Sequence("r", prompt, 0, blocks, GREEDY, True, fills_right(1))]))


def compare(contenders: list[Steps], turns: int) -> list[tuple[float, float]]:
    """Median milliseconds of each, of CPU time and of the clock, after two turns that are not counted. Each generator
    is at the step before the one that is timed."""
    times: list[list[tuple[float, float]]] = [[] for _ in contenders]
    for steps in contenders:
        next(steps)
    for turn in range(turns + 2):
        for steps, taken in zip(contenders, times, strict=True):
            cpu_s, clock_s = time.process_time(), time.perf_counter()
            next(steps)
            if turn >= 2:
                taken.append(((time.process_time() - cpu_s) * 1e3, (time.perf_counter() - clock_s) * 1e3))
    return [(statistics.median(cpu for cpu, _ in each), statistics.median(ms for _, ms in each)) for each in times]


def row(step: str, way: str, medians: list[tuple[float, float]]) -> list[str]:
    theirs, ours = medians
    times = [f"{ms:.1f}" for ms in (theirs[0], ours[0], theirs[1], ours[1])]
    return [step, way, *times[:2], f"{theirs[0] / ours[0]:.2f}", *times[2:]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm.attention", description=__doc__)
    parser.add_argument("--threads", type=int, default=cpu_count(), help="of each engine (default %(default)s)")
    parser.add_argument("--turns", type=int, default=15, help="per size (default %(default)s)")
    parser.add_argument("--dtype", default="float32", help="(default %(default)s)")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="name, folder or hub id (default %(default)s)")
    arguments = parser.parse_args()
    path = prepare(arguments.model, default_cache_dir(), lambda line: print(line, file=sys.stderr)).path
    ours, theirs = (load(path, name, arguments.threads, arguments.dtype) for name in (OWN_ATTENTION, "vllm"))

    rows = []
    for size in BATCHES:
        for way, fills_right in DIRECTIONS.items():
            contenders = [decodes(theirs, size, DIRECTIONS["left"]), decodes(ours, size, fills_right)]
            if size > 1 or way != "mixed":
                rows.append(row(f"decode, batch {size}, context {CONTEXT}", way, compare(contenders, arguments.turns)))
    for length in CHUNKS:
        for way in ("left", "right"):
            contenders = [prefills(theirs, length, DIRECTIONS["left"]), prefills(ours, length, DIRECTIONS[way])]
            rows.append(row(f"prefill, {length} tokens", way, compare(contenders, arguments.turns)))
    print(f"{theirs.spec.device}, {theirs.spec.dtype}\n")
    header = [
        "step",
        "ours fills from the",
        "vLLM's, CPU ms",
        "ours, CPU ms",
        "times as fast",
        "vLLM's, ms",
        "ours, ms",
    ]
    print_table(header, rows)


if __name__ == "__main__":
    main()
