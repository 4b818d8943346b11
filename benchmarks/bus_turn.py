"""The turn of a plan on the bus: a step message out, a plan back: ``python -m benchmarks.bus_turn``.

Two processes, one nats-server, as in the stack: the one publishes step messages of 64 running requests, the other
answers each with a plan of 64 entries. The turn is both ways; the design asks for one way, publish to receive.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context

import uvloop

from benchmarks.figures import print_table, quantile
from benchmarks.planning import make_step
from services.local.stack.nats_server import nats_binary
from services.local.stack.port import free_port
from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.codec import encode
from shared.protocol.messages import StepPlan, StepStarted

RUNNING = 64


async def answer(url: str) -> None:
    """The peer: a plan for each step message."""
    bus = await Bus.connect(url, "bench-peer")

    async def on_step(message: StepStarted) -> None:
        plan = StepPlan(message.executor_id, message.epoch, message.step + 1, message.entries, [], [], 0.0)
        await bus.publish(subjects.plan(message.executor_id), plan)

    await bus.subscribe(subjects.step("executor-0"), StepStarted, on_step)
    await asyncio.Event().wait()


def peer(url: str) -> None:
    uvloop.run(answer(url))


async def turns(url: str, rounds: int) -> tuple[list[float], int]:
    """Milliseconds of each turn, fastest first, and the size of a step message in bytes."""
    bus = await Bus.connect(url, "bench")
    arrived: asyncio.Queue[float] = asyncio.Queue()

    async def on_plan(_: StepPlan) -> None:
        arrived.put_nowait(time.perf_counter())

    await bus.subscribe(subjects.plan("executor-0"), StepPlan, on_plan)
    message = make_step(RUNNING)
    times = []
    for number in range(rounds + 100):
        start = time.perf_counter()
        while True:
            await bus.publish(subjects.step("executor-0"), message)
            try:
                end = await asyncio.wait_for(arrived.get(), 1.0)
                break
            except TimeoutError:  # the peer is still starting
                start = time.perf_counter()
        if number >= 100:
            times.append((end - start) * 1e3)
    await bus.close()
    return sorted(times), len(encode(message))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    rounds = parser.parse_args().rounds
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [nats_binary(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        url = f"nats://127.0.0.1:{port}"
        process = get_context("spawn").Process(target=peer, args=(url,), daemon=True)
        process.start()
        try:
            times, size = uvloop.run(turns(url, rounds))
        finally:
            process.terminate()
            process.join()
            server.terminate()
            server.wait()
    figures = [quantile(times, q) for q in (0.5, 0.9, 0.99)]
    row = [str(size), *(f"{figure:.3f}" for figure in figures), f"{figures[0] / 2:.3f}"]
    print_table(["step message bytes", "turn p50 ms", "p90 ms", "p99 ms", "one way p50 ms"], [row])


if __name__ == "__main__":
    sys.exit(main())
