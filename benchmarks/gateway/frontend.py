"""The front end alone: ``python -m benchmarks.gateway.frontend``. Gateway, bus and executor run as in the stack; the
engine is the simulated one, scaled so that it is never what is waited for.

Streamed tokens per second are given against the clock and against the processor time of the gateway's process, which
says what one core carries when client and executor are elsewhere. The TTFT is that of short prompts sent one after the
other with an engine that takes next to no time: all of it is added by gateway, bus and executor loop. Memory is that of
the gateway's process before the streams, at most while they run, and after.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import psutil
import typer
import uvloop

from benchmarks.gateway.stream_client import Client, all_at_once, first_tokens
from benchmarks.harness.command import run_command
from benchmarks.harness.model import DEFAULT_MODEL
from benchmarks.harness.stack import Stack, stack
from benchmarks.harness.table import print_table, quantiles
from benchmarks.harness.usage import MIB, usage_of

INSTANT = "0.0001"  # time scale of the engine for the TTFT
STEP = ("--max-num-seqs", "1024", "--max-num-batched-tokens", "2048")  # so that a thousand streams run together
STREAMS = [16, 64, 128, 1000]
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


@contextlib.contextmanager
def front_end(time_scale: str) -> Iterator[Stack]:
    """One executor and one gateway, ready."""
    with stack() as running:
        running.start("executor", "--engine", "sim", "--sim-time-scale", time_scale, *STEP)
        running.start("gateway")
        running.wait_ready()
        yield running


async def carry(running: Stack, num_streams: int, max_tokens: int) -> list[str]:
    """One row: all streams at once."""
    gateway: psutil.Process = running.processes["gateway"]
    clients = [await Client.connect(running.port, DEFAULT_MODEL) for _ in range(num_streams)]
    await all_at_once(clients[:2], 8)
    with usage_of({"gateway": gateway}) as usage:
        answers = await all_at_once(clients, max_tokens)
    num_tokens = sum(answer.num_tokens for answer in answers)
    for client in clients:
        client.close()
    cpu_s = usage.cpu_s["gateway"]
    figures = (num_tokens, num_tokens / usage.seconds, 100 * cpu_s / usage.seconds, num_tokens / cpu_s)
    memory = (usage.before_mib["gateway"], usage.most_mib["gateway"], gateway.memory_info().rss / MIB)
    per_event = num_tokens / sum(answer.num_events for answer in answers)
    row = [str(num_streams), *(f"{figure:,.0f}" for figure in figures), f"{per_event:.2f}"]
    return [*row, *(f"{mib:.0f}" for mib in memory)]


async def measure_tokens(running: Stack, streams: list[int], max_tokens: int) -> list[list[str]]:
    return [await carry(running, num_streams, max_tokens) for num_streams in streams]


def main(
    streams: list[int] = STREAMS,
    max_tokens: int = 400,
    time_scale: Annotated[str, typer.Option(help="Of the simulated engine, for the tokens per second.")] = "0.25",
    rounds: Annotated[int, typer.Option(help="Requests for the TTFT.")] = 500,
) -> None:
    with front_end(time_scale) as running:
        print_table(HEADS, uvloop.run(measure_tokens(running, streams, max_tokens)))
    print()
    with front_end(INSTANT) as running:
        times = uvloop.run(first_tokens(running.port, DEFAULT_MODEL, rounds))
    print_table(["added TTFT p50 ms", "p90 ms", "p99 ms"], [quantiles(times, 0.5, 0.9, 0.99)])


if __name__ == "__main__":
    run_command(main)
