"""Throughput by pipeline depth: ``python -m benchmarks.bus.pipeline``.

An executor service with the sim engine (K stages that share a step's time) and its scheduler on a real bus, in one
process; offline requests only, without a latency budget, from the first step message to the last result.
"""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

import uvloop

from benchmarks.engine.batches import prompt_of
from benchmarks.harness.command import Results, benchmark, model_folder
from benchmarks.harness.stack import stack
from benchmarks.scheduling.offline_order import make_pool, offline_request
from services.executor.engines.factory import load_engine
from services.executor.service import ExecutorService
from services.executor.settings import ExecutorSettings
from shared.bus import Bus
from shared.clock import SystemClock
from shared.latency.linear import LinearLatencyModel
from shared.protocol import subjects
from shared.protocol.offline import OfflineResult
from shared.protocol.steps import StepStarted
from shared.replica.scheduler import Scheduler
from shared.scheduling.policy import Policy
from shared.scheduling.strategy import Strategy
from shared.text.tokenizer import Tokenizer

PROMPT, OUTPUT = 256, 64  # tokens
NO_LATENCY_KNOWN = LinearLatencyModel(0, 0, 0, 0, 0, 0, 0)


async def measure(url: str, folder: Path, depth: int, num_requests: int) -> tuple[float, Mapping[str, object]]:
    """Seconds from the first step to the last result, and what the executor says of itself."""
    settings = ExecutorSettings(
        model_path=str(folder),
        engine="sim",
        max_num_seqs=16,
        max_num_batched_tokens=256,
        pipeline_depth=depth,
        strategy=Strategy.of("sarathi++"),
    )
    bus, peer_bus = await Bus.connect(url, "executor-0"), await Bus.connect(url, "bench")
    executor = ExecutorService(bus, settings, load_engine(settings), Tokenizer.from_folder(folder), SystemClock())
    pool, batch = make_pool("fcfs"), f"batch_{depth}"
    pool.add([offline_request(number, prompt_of(PROMPT, number), OUTPUT, batch) for number in range(num_requests)])
    scheduler = Scheduler(executor.info, pool, lambda: (Policy(), NO_LATENCY_KNOWN), SystemClock())

    async def on_step(message: StepStarted) -> None:
        scheduler.on_step(message)
        for plan in scheduler.plan():
            await peer_bus.publish(subjects.plan("executor-0"), plan)

    await peer_bus.subscribe(subjects.step("executor-0"), StepStarted, on_step)
    await peer_bus.flush()
    await executor.start()
    start = time.perf_counter()
    running = asyncio.create_task(executor.run())
    num_ended = 0
    async for stored in peer_bus.follow(subjects.RESULTS_STREAM, subjects.ALL_RESULTS, OfflineResult):
        num_ended += stored is not None and stored.message.request_id.startswith(f"{batch}.")
        if num_ended == num_requests:
            break
    elapsed_s = time.perf_counter() - start
    running.cancel()
    await asyncio.wait((running,))
    await executor.stop()
    await bus.close()
    await peer_bus.close()
    return elapsed_s, executor.details()


@benchmark
def main(requests: int = 128) -> Results:
    folder, first_s = model_folder(), 0.0
    with stack() as running:
        for depth in (1, 2, 4):
            elapsed_s, details = uvloop.run(measure(running.nats_url, folder, depth, requests))
            first_s = first_s or elapsed_s
            yield {
                "pipeline depth": str(depth),
                "output tokens/s": f"{requests * OUTPUT / elapsed_s:.0f}",
                "of depth 1": f"{first_s / elapsed_s:.2f}",
                "steps": str(details["steps"]),
                "planned": str(details["steps_planned"]),
            }
