"""vLLM's model on its own attention and on ours: ``python -m benchmarks.vllm.attention``.

Two engines in one process run the same step in turns, decodes going on from turn to turn; on ours requests fill their
blocks from the left, from the right, or every other one so. Medians of CPU time, which leaves out what else the machine
does, and of the clock. Blocks are scattered over the pool.
"""

from services.executor.engines.torch.threads import cpu_count

# isort: split
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.engine.batches import block_tables, decodes, prefill_step, prompt_of
from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, Row, benchmark, formatted, model_folder
from benchmarks.harness.turns import in_turns
from services.executor.engines.factory import load_engine
from services.executor.settings import OWN_ATTENTION, ExecutorSettings
from shared.replica.engine import Engine

CONTEXT = 256
BATCHES = (1, 8, 32)
CHUNKS = (128, 512)
BLOCK_SIZE = 32

Direction = Callable[[int], bool]
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


def prefills(engine: Engine, num_tokens: int, fills_right: Direction) -> Iterator[None]:
    table, *_ = block_tables(engine.spec.num_blocks, max(BATCHES))
    while True:
        yield
        engine.execute(prefill_step(prompt_of(num_tokens), table, right=fills_right(1)))


def row(step: str, way: str, theirs: Iterator[None], ours: Iterator[None], turns: int) -> Row:
    """Each generator is at the step before the one that is timed."""
    for steps in (theirs, ours):
        next(steps)
    their_times, our_times = in_turns([lambda: next(theirs), lambda: next(ours)], turns, warm_up=2)
    return {
        "step": step,
        "ours fills from the": way,
        **formatted(".1f", {"vLLM's, CPU ms": their_times.median_cpu_ms, "ours, CPU ms": our_times.median_cpu_ms}),
        "times as fast": f"{their_times.median_cpu_ms / our_times.median_cpu_ms:.2f}",
        **formatted(".1f", {"vLLM's, ms": their_times.median_ms, "ours, ms": our_times.median_ms}),
    }


@benchmark
def main(
    threads: Annotated[int, typer.Option(help="Of each engine.")] = cpu_count(),
    turns: Annotated[int, typer.Option(help="Per size.")] = 15,
    dtype: str = "float32",
    model: ModelOption = DEFAULT_MODEL,
) -> Results:
    path, left = model_folder(model), DIRECTIONS["left"]
    ours, theirs = (load(path, name, threads, dtype) for name in (OWN_ATTENTION, "vllm"))
    yield f"{theirs.spec.device}, {theirs.spec.dtype}"
    tables = block_tables(ours.spec.num_blocks, max(BATCHES))
    for size in BATCHES:
        for way, fills_right in DIRECTIONS.items():
            if size > 1 or way != "mixed":
                name = f"decode, batch {size}, context {CONTEXT}"
                contenders = decodes(theirs, tables[:size], CONTEXT), decodes(ours, tables[:size], CONTEXT, fills_right)
                yield row(name, way, *contenders, turns)
    for length in CHUNKS:
        for way in ("left", "right"):
            contenders = prefills(theirs, length, left), prefills(ours, length, DIRECTIONS[way])
            yield row(f"prefill, {length} tokens", way, *contenders, turns)
