"""How soon a step of offline work gives way: ``python -m benchmarks.engine.interruption``.

A chunk of an offline prompt runs, at a random moment of it somebody comes, and the step is told to stop (OOCO section
3.4.1). What is measured is the time from there to the engine's return, which is what an online prompt waits for; beside
it, in turns, what it waits for where the step goes on to its end.
"""

import random
import threading
import time
from dataclasses import replace
from typing import Annotated

import typer

from benchmarks.engine.batches import block_tables, prefill_step, prompt_of
from benchmarks.harness.command import (
    DEFAULT_MODEL,
    ModelOption,
    Results,
    Row,
    benchmark,
    formatted,
    model_folder,
    quantile,
)
from services.executor.engines.factory import load_engine
from services.executor.settings import ExecutorSettings
from shared.replica.engine import Engine, StepBatch
from shared.text.model_folder import read_json

CHUNKS = (128, 256, 512, 1024, 2048)


def waited_ms(engine: Engine, batch: StepBatch, come_s: float) -> float:
    """From the moment that somebody comes, ``come_s`` after the step's begin, to the step's end."""
    came: list[float] = []

    def come() -> None:
        came.append(time.perf_counter())
        engine.interrupt(batch.step)

    timer = threading.Timer(come_s, come)
    timer.start()
    engine.execute(batch)
    end = time.perf_counter()
    timer.cancel()
    timer.join()
    return max(0.0, end - came[0]) * 1e3 if came else 0.0


def row(engine: Engine, table: list[int], num_tokens: int, num_layers: int, runs: int, rng: random.Random) -> Row:
    step = prefill_step(prompt_of(num_tokens), table[: -(-num_tokens // engine.spec.block_size)])
    alone_ms = sorted(engine.execute(step).step_ms for _ in range(3))[1]
    waits: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * runs):
        stops = bool(number % 2)
        batch = replace(step, step=number + 1, may_be_interrupted=stops)
        waits[stops].append(waited_ms(engine, batch, rng.uniform(0.1, 0.8) * alone_ms / 1e3))
    stopped, whole = sorted(waits[True]), sorted(waits[False])
    return {
        "engine": engine.spec.engine,
        "chunk": f"{num_tokens:,} tokens",
        **formatted(".1f", {"step ms": alone_ms, "a layer, ms": alone_ms / num_layers}),
        **formatted(".1f", {"to its end, p50 ms": quantile(whole, 0.5), "p99 ms": quantile(whole, 0.99)}),
        **formatted(".1f", {"stopped, p50 ms": quantile(stopped, 0.5), "stopped, p99 ms": quantile(stopped, 0.99)}),
        **formatted(".1f", {"layers, p50": quantile(stopped, 0.5) / (alone_ms / num_layers)}),
    }


@benchmark
def main(
    engine: Annotated[str, typer.Option(help="torch or vllm.")] = "torch",
    threads: Annotated[int, typer.Option(help="Of the engine; 0: one per core.")] = 0,
    runs: Annotated[int, typer.Option(help="Per chunk, each way.")] = 20,
    model: ModelOption = DEFAULT_MODEL,
) -> Results:
    path = model_folder(model)
    settings = ExecutorSettings(
        str(path), engine=engine, threads=threads, kv_blocks=max(CHUNKS) // 8, max_num_batched_tokens=max(CHUNKS)
    )
    loaded, num_layers = load_engine(settings), int(read_json(path / "config.json")["num_hidden_layers"])
    yield f"{loaded.spec.engine}, {loaded.spec.device}, {loaded.spec.dtype}, {num_layers} layers, {runs} runs each way"
    (table,) = block_tables(loaded.spec.num_blocks, 1)
    rng = random.Random(0)
    for num_tokens in CHUNKS:
        yield row(loaded, table, num_tokens, num_layers, runs, rng)
    loaded.close()
