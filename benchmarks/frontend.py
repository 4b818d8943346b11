"""The front end alone: ``python -m benchmarks.frontend``. Gateway, bus and executor run as in the stack; the engine is
the simulated one, scaled so that it is never what is waited for.

Streamed tokens per second are given against the clock and against the processor time of the gateway's process, which
says what one core carries when client and executor are elsewhere. The TTFT is that of short prompts sent one after the
other with an engine that takes next to no time: all of it is added by gateway, bus and executor loop. Memory is that of
the gateway's process before the streams, at most while they run, and after.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import uvloop

from benchmarks.figures import print_table, quantile
from benchmarks.stream_client import Client, first_tokens, wait_ready
from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from services.local.stack.nats_server import nats_binary
from services.local.stack.port import free_port

INSTANT = "0.0001"  # time scale of the engine for the TTFT
STEP = ("--max-num-seqs", "1024", "--max-num-batched-tokens", "2048")  # so that a thousand streams run together
MEMORY_S = 0.2  # between looks at the memory
MIB = 2**20


HEADS = (
    "streams",
    "tokens",
    "tokens/s",
    "gateway CPU %",
    "tokens/s of one core",
    "tokens/event",
    "MiB before",
    "MiB at most",
    "MiB after",
)


@dataclass(frozen=True, slots=True)
class Stack:
    """What the client needs of a running stack."""

    port: int
    gateway: psutil.Process

    def cpu_s(self) -> float:
        """Processor time of the gateway so far."""
        times = self.gateway.cpu_times()
        return float(times.user + times.system)

    def memory_mib(self) -> float:
        """What the gateway holds of the memory now."""
        return float(self.gateway.memory_info().rss) / MIB


@contextlib.contextmanager
def stack(time_scale: str) -> Iterator[Stack]:
    """nats-server, one executor and one gateway."""
    folder = str(prepare(DEFAULT_MODEL, default_cache_dir(), lambda line: print(line, file=sys.stderr)).path)
    nats_port, port = free_port(), free_port()
    common = ("--nats", f"nats://127.0.0.1:{nats_port}", "--log-level", "error", "--model-path", folder)
    with tempfile.TemporaryDirectory() as store:
        commands = [
            [nats_binary(), "-a", "127.0.0.1", "-p", str(nats_port), "-js", "-sd", store],
            [*service("executor"), *common, "--engine", "sim", "--sim-time-scale", time_scale, *STEP],
            [*service("gateway"), *common, "--port", str(port)],
        ]
        processes = [
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for command in commands
        ]
        try:
            yield Stack(port, psutil.Process(processes[-1].pid))
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()


def service(name: str) -> list[str]:
    return [sys.executable, "-m", f"services.{name}"]


async def carry(stack: Stack, num_streams: int, max_tokens: int) -> list[str]:
    """One row: all streams at once."""
    clients = [await Client.connect(stack.port, DEFAULT_MODEL) for _ in range(num_streams)]
    for client in clients[:2]:
        await client.stream([5] * 32, 8)
    cpu_s, start = stack.cpu_s(), time.perf_counter()
    prompts = [[100 + index] * 32 for index in range(num_streams)]
    before_mib = stack.memory_mib()
    watch = asyncio.create_task(highest_memory(stack))
    answers = await asyncio.gather(*(c.stream(p, max_tokens) for c, p in zip(clients, prompts, strict=True)))
    watch.cancel()
    wall_s, cpu_s = time.perf_counter() - start, stack.cpu_s() - cpu_s
    num_tokens = sum(answer.num_tokens for answer in answers)
    for client in clients:
        client.close()
    num_events = sum(answer.num_events for answer in answers)
    figures = (num_tokens, num_tokens / wall_s, 100 * cpu_s / wall_s, num_tokens / cpu_s)
    memory = (before_mib, await watch, stack.memory_mib())
    row = [str(num_streams), *(f"{figure:,.0f}" for figure in figures), f"{num_tokens / num_events:.2f}"]
    return [*row, *(f"{mib:.0f}" for mib in memory)]


async def highest_memory(stack: Stack) -> float:
    """In MiB, from now until it is cancelled."""
    highest = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            highest = max(highest, stack.memory_mib())
            await asyncio.sleep(MEMORY_S)
    return highest


async def measure_tokens(stack: Stack, streams: list[int], max_tokens: int) -> list[list[str]]:
    await wait_ready(stack.port)
    return [await carry(stack, num_streams, max_tokens) for num_streams in streams]


async def measure_ttft(stack: Stack, rounds: int) -> list[float]:
    await wait_ready(stack.port)
    return await first_tokens(stack.port, DEFAULT_MODEL, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[16, 64, 128, 1000])
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--time-scale", default="0.25", help="of the simulated engine, for the tokens per second")
    parser.add_argument("--rounds", type=int, default=500, help="requests for the TTFT")
    arguments = parser.parse_args()
    with stack(arguments.time_scale) as running:
        rows = uvloop.run(measure_tokens(running, arguments.streams, arguments.max_tokens))
    print_table(HEADS, rows)
    print()
    with stack(INSTANT) as running:
        times = uvloop.run(measure_ttft(running, arguments.rounds))
    print_table(["added TTFT p50 ms", "p90 ms", "p99 ms"], [[f"{quantile(times, q):.2f}" for q in (0.5, 0.9, 0.99)]])


if __name__ == "__main__":
    main()
