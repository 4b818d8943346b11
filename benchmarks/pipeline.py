"""Throughput by pipeline depth: ``python -m benchmarks.pipeline``.

An executor service with the sim engine (K stages that share a step's time) and its scheduler on a real bus, in one
process; offline requests only, without a latency budget, from the first step message to the last result.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from benchmarks.figures import print_table
from services.executor.engines.factory import load_engine
from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from services.executor.service import ExecutorService
from services.executor.settings import ExecutorSettings
from services.local.stack.nats_server import nats_binary
from services.local.stack.port import free_port
from shared.bus import Bus
from shared.clock import SystemClock
from shared.latency.linear import LinearLatencyModel
from shared.protocol import subjects
from shared.protocol.messages import GenerateRequest, Kind, OfflineRequest, OfflineResult, StepStarted
from shared.protocol.sampling import SamplingParams
from shared.replica.offline_pool import OfflinePool
from shared.replica.scheduler import AsyncScheduler
from shared.scheduling.batch import Policy
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.orders.online.registry import make_online_order
from shared.scheduling.presets import preset_named
from shared.text.tokenizer import Tokenizer

PROMPT, OUTPUT = 256, 64  # tokens
NO_LATENCY_KNOWN = LinearLatencyModel(0, 0, 0, 0, 0, 0, 0)


def make_offline(depth: int, number: int) -> OfflineRequest:
    request_id = f"batch_{depth}.{number}"
    sampling = SamplingParams(max_tokens=OUTPUT, seed=number, ignore_eos=True)
    prompt_token_ids = [(number * 7919 + position) % 40_000 for position in range(PROMPT)]
    generate = GenerateRequest(request_id, Kind.OFFLINE, prompt_token_ids, sampling, 0.0)
    return OfflineRequest(generate, f"batch_{depth}", number, f"custom-{number}", "m")


async def measure(url: str, folder: Path, depth: int, num_requests: int) -> tuple[float, ExecutorService]:
    """Seconds from the first step to the last result."""
    settings = ExecutorSettings(
        model_path=str(folder), engine="sim", max_num_seqs=16, max_num_batched_tokens=256, pipeline_depth=depth
    )
    bus, peer_bus = await Bus.connect(url, "executor-0"), await Bus.connect(url, "bench")
    engine, order = load_engine(settings), make_online_order("fcfs")
    tokenizer = Tokenizer.from_folder(folder)
    executor = ExecutorService(bus, settings, preset_named("sarathi++"), order, engine, tokenizer, SystemClock())
    pool = OfflinePool(FairShare(FcfsOrder()), lambda: None, lambda _, __: None)
    pool.add([make_offline(depth, number) for number in range(num_requests)])
    scheduler = AsyncScheduler(executor.info, pool, lambda: (Policy(), NO_LATENCY_KNOWN), SystemClock())

    async def on_step(message: StepStarted) -> None:
        for plan in scheduler.on_step(message)[0]:
            await peer_bus.publish(subjects.plan("executor-0"), plan)

    await peer_bus.subscribe(subjects.step("executor-0"), StepStarted, on_step)
    await peer_bus.flush()
    await executor.start()
    start = time.perf_counter()
    running = asyncio.create_task(executor.run())
    num_ended = 0
    async for stored in peer_bus.follow(subjects.RESULTS_STREAM, subjects.ALL_RESULTS, OfflineResult):
        num_ended += stored is not None and stored.message.request_id.startswith(f"batch_{depth}.")
        if num_ended == num_requests:
            break
    elapsed_s = time.perf_counter() - start
    running.cancel()
    await asyncio.wait((running,))
    await executor.stop()
    await bus.close()
    await peer_bus.close()
    return elapsed_s, executor


async def rows(url: str, folder: Path, num_requests: int) -> list[list[str]]:
    made = []
    first_s = 0.0
    for depth in (1, 2, 4):
        elapsed_s, executor = await measure(url, folder, depth, num_requests)
        first_s = first_s or elapsed_s
        details = executor.details()
        steps, planned = details["steps"], details["steps_planned"]
        tokens_per_s = num_requests * OUTPUT / elapsed_s
        made.append([str(depth), f"{tokens_per_s:.0f}", f"{first_s / elapsed_s:.2f}", str(steps), str(planned)])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=128)
    num_requests = parser.parse_args().requests
    model = prepare(DEFAULT_MODEL, default_cache_dir(), lambda line: print(line, file=sys.stderr))
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [nats_binary(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            table = uvloop.run(rows(f"nats://127.0.0.1:{port}", model.path, num_requests))
        finally:
            server.terminate()
            server.wait()
    print_table(["pipeline depth", "output tokens/s", "of depth 1", "steps", "planned"], table)


if __name__ == "__main__":
    main()
