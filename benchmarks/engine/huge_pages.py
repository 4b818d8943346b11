"""Steps of the torch engine on a CPU with its tensors in huge pages, and without: ``python -m
benchmarks.engine.huge_pages``.

Two processes with the same model, which differ in what torch reads of its environment, run each step in turns.
"""

from services.executor.engines.torch.threads import cpu_count

# isort: split
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import typer

from benchmarks.engine.engine_speed import CPU_SIZES
from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, benchmark, formatted, model_folder
from benchmarks.harness.turns import in_turns
from services.executor.engines.torch.engine import TorchEngine

VARIABLE = "THP_MEM_ALLOC_ENABLE"
STEPS = {
    "decode, batch 1": CPU_SIZES.decodes(1),
    "decode, batch 8": CPU_SIZES.decodes(8),
    "prefill, 64 tokens": CPU_SIZES.prefill(64),
    "prefill, 480 tokens": CPU_SIZES.prefill(480),
}


def run_steps(told: Connection, model: Path, num_threads: int) -> None:
    """Those whose names come, until the other end is closed; each is answered with how many KiB are in huge pages."""
    engine = TorchEngine.load(model, "bench", "cpu", num_blocks=CPU_SIZES.num_blocks, num_threads=num_threads)
    try:
        while True:
            engine.execute(STEPS[told.recv()])
            told.send(huge_kib())
    except EOFError:
        engine.close()


def huge_kib() -> int:
    """Of this process, on Linux."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages:"))


@contextmanager
def runner(enabled: str, model: Path, num_threads: int) -> Iterator[Connection]:
    """The end of a process to tell names of steps to."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_steps, args=(theirs, model, num_threads), daemon=True)
    with patch.dict(os.environ, {VARIABLE: enabled}):
        process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join()


def run(connection: Connection, name: str) -> int:
    connection.send(name)
    huge: int = connection.recv()
    return huge


@benchmark
def main(
    runs: Annotated[int, typer.Option(min=1, help="Of each step.")] = 20,
    threads: int = cpu_count(),
    model: ModelOption = DEFAULT_MODEL,
) -> Results:
    path = model_folder(model)
    with ExitStack() as running:
        without, with_huge = (running.enter_context(runner(enabled, path, threads)) for enabled in "01")
        for name in STEPS:
            plain, huge = in_turns([partial(run, without, name), partial(run, with_huge, name)], runs)
            taken = {"plain ms": plain.median_ms, "huge pages ms": huge.median_ms}
            yield {
                "step": name,
                **formatted(".1f", taken),
                "plain, of huge pages": f"{plain.median_ms / huge.median_ms:.2f}",
                "MiB in huge pages": f"{run(with_huge, name) >> 10}",
            }
