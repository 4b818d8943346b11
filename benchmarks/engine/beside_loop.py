"""Steps of the torch engine beside an event loop that works in the same interpreter, by how long Python lets one thread
keep it while another waits (``sys.setswitchinterval``): ``python -m benchmarks.engine.beside_loop``.

As in an executor, the next step is with the engine's thread before the one before it ends, and the loop has so many
milliseconds of work for each. A step is a decode batch, on a GPU a recorded one.
"""

import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated

import typer

from benchmarks.engine.batches import block_tables, decode_step
from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, Row, benchmark, formatted, model_folder
from services.executor.engines.torch.engine import TorchEngine
from shared.replica.engine import StepBatch

BLOCK_SIZE = 16
INTERVALS_S = (5e-3, 1e-3, 2e-4, 5e-5, 1e-5)  # the first is Python's own
WORK_MS = (0.0, 1.0, 2.0)
WARM_UP_STEPS = 20


def beside_loop(path: Path, device: str, batch_size: int, context: int, steps: int) -> Results:
    """A row for each amount of work; ``context``: tokens that a decode reads, its own included."""
    num_blocks = batch_size * (context // BLOCK_SIZE + 1)
    options = {"num_blocks": num_blocks, "max_graph_decodes": batch_size if device == "cuda" else 0}
    engine = TorchEngine.load(path, "bench", device, block_size=BLOCK_SIZE, **options)
    batch = decode_step(block_tables(num_blocks, batch_size), context - 1)
    before = sys.getswitchinterval()
    try:
        yield f"{engine.spec.device}, {engine.spec.dtype}; milliseconds a step of {batch_size} decodes."
        for work_ms in WORK_MS:
            yield _row(engine, batch, work_ms, steps)
    finally:
        sys.setswitchinterval(before)
        engine.close()


def _row(engine: TorchEngine, batch: StepBatch, work_ms: float, steps: int) -> Row:
    taken = {}
    for interval_s in INTERVALS_S:
        sys.setswitchinterval(interval_s)
        taken[f"interval {interval_s * 1e3:g} ms"] = _step_ms(engine, batch, work_ms, steps)
    return {"the loop's work, ms": f"{work_ms:g}", **formatted(".2f", taken)}


def _step_ms(engine: TorchEngine, batch: StepBatch, work_ms: float, steps: int) -> float:
    todo, done = SimpleQueue[bool](), SimpleQueue[None]()

    def execute() -> None:
        while todo.get():
            engine.execute(batch)
            done.put(None)

    thread = threading.Thread(target=execute)
    thread.start()
    for _ in range(2):
        todo.put(True)
    started_s = 0.0
    for step in range(WARM_UP_STEPS + steps):
        if step == WARM_UP_STEPS:
            started_s = time.perf_counter()
        done.get()
        _work(work_ms)
        todo.put(True)
    taken_s = time.perf_counter() - started_s
    todo.put(False)
    thread.join()
    return taken_s / steps * 1e3


def _work(work_ms: float) -> None:
    """That keeps the interpreter."""
    until_s = time.perf_counter() + work_ms / 1e3
    while time.perf_counter() < until_s:
        pass


@benchmark
def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    batch_size: Annotated[int, typer.Option(min=1, help="Decodes of a step.")] = 16,
    context: Annotated[int, typer.Option(min=1, help="Tokens that each reads.")] = 256,
    steps: Annotated[int, typer.Option(min=1, help="Per cell.")] = 100,
    model: ModelOption = DEFAULT_MODEL,
) -> Results:
    return beside_loop(model_folder(model), device, batch_size, context, steps)
