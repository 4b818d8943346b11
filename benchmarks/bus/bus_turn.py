"""The turn of a plan on the bus: a step message out, a plan back: ``python -m benchmarks.bus.bus_turn``.

Two processes, one nats-server, as in the stack: the one publishes step messages of 64 running requests, the other
answers each with a plan of 64 entries. The turn is both ways; the design asks for one way, publish to receive. The bus
is once open, and once encrypted with a key for each role, as that of a stack is; they are asked in turns.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from multiprocessing import get_context

import uvloop

from benchmarks.harness.command import Results, benchmark, quantile, quantiles
from benchmarks.harness.stack import Stack, stack
from benchmarks.scheduling.planning import make_step
from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.protocol import subjects
from shared.protocol.codec import encode
from shared.protocol.steps import StepPlan, StepStarted

RUNNING, WARM_UP = 64, 100


async def answer(address: BusAddress) -> None:
    """The peer: a plan for each step message."""
    bus = await Bus.connect(address, "bench-peer")

    async def on_step(message: StepStarted) -> None:
        plan = StepPlan(message.executor_id, message.epoch, message.step + 1, message.entries, [], [], 0.0)
        await bus.publish(subjects.plan(message.executor_id), plan)

    await bus.subscribe(subjects.step("executor-0"), StepStarted, on_step)
    await asyncio.Event().wait()


def peer(address: BusAddress) -> None:
    uvloop.run(answer(address))


async def turns(address: BusAddress, rounds: int) -> tuple[list[float], int]:
    """Milliseconds of each turn, and the size of a step message in bytes."""
    bus = await Bus.connect(address, "bench")
    arrived: asyncio.Queue[float] = asyncio.Queue()

    async def on_plan(_: StepPlan) -> None:
        arrived.put_nowait(time.perf_counter())

    await bus.subscribe(subjects.plan("executor-0"), StepPlan, on_plan)
    message, times = make_step(RUNNING), list[float]()
    while len(times) < rounds + WARM_UP:
        start_s = time.perf_counter()
        await bus.publish(subjects.step("executor-0"), message)
        try:
            times.append((await asyncio.wait_for(arrived.get(), 1.0) - start_s) * 1e3)
        except TimeoutError:  # the peer is still starting
            continue
    await bus.close()
    return times[WARM_UP:], len(encode(message))


@contextlib.contextmanager
def answered(running: Stack) -> Iterator[BusAddress]:
    """A peer answers; where to ask."""
    peers_own = running.address(BusRole.OFFLINE_QUEUE)
    process = get_context("spawn").Process(target=peer, args=(peers_own,), daemon=True)
    process.start()
    try:
        yield running.address(BusRole.EXECUTOR)
    finally:
        process.terminate()
        process.join()


@benchmark
def main(rounds: int = 2000, repeats: int = 5) -> Results:
    times: dict[str, list[float]] = {"open": [], "encrypted, with keys": []}
    with contextlib.ExitStack() as exits:
        asked = [exits.enter_context(answered(exits.enter_context(stack(is_secured=each)))) for each in (False, True)]
        for _ in range(repeats):
            for taken, address in zip(times.values(), asked, strict=True):
                found, size = uvloop.run(turns(address, rounds // repeats))
                taken += found
    for name, taken in times.items():
        taken.sort()
        yield {
            "bus": name,
            "step message bytes": str(size),
            **quantiles(taken, {"turn p50 ms": 0.5, "p90 ms": 0.9, "p99 ms": 0.99}, digits=3),
            "one way p50 ms": f"{quantile(taken, 0.5) / 2:.3f}",
        }
