"""The front end alone: ``python -m benchmarks.gateway.frontend``. Gateway, bus and executor run as in the stack; the
engine is the simulated one, scaled so that it is never what is waited for.

Streamed tokens per second are given against the clock and against the processor time of the gateway's process, which
says what one core carries when client and executor are elsewhere. The TTFT is that of short prompts sent one after the
other with an engine that takes next to no time: all of it is added by gateway, bus and executor loop. Memory is that of
the gateway's process before the streams, at most while they run, and after.
"""

from contextlib import AbstractContextManager
from typing import Annotated

import psutil
import typer
import uvloop

from benchmarks.gateway.stream_client import Client, all_at_once, first_tokens
from benchmarks.harness.command import DEFAULT_MODEL, Results, Row, benchmark, quantiles
from benchmarks.harness.stack import MIB, Stack, stack, usage_of

INSTANT = "0.0001"  # time scale of the engine for the TTFT
STEP = ("--max-num-seqs", "1024", "--max-num-batched-tokens", "2048")  # so that a thousand streams run together
STREAMS = [16, 64, 128, 1000]


def front_end(time_scale: str) -> AbstractContextManager[Stack]:
    """One executor and one gateway, ready."""
    return stack(executor=("--engine", "sim", "--sim-time-scale", time_scale, *STEP), gateway=())


async def carry(running: Stack, num_streams: int, max_tokens: int) -> Row:
    """All streams at once."""
    gateway: psutil.Process = running.processes["gateway"]
    clients = [await Client.connect(running.port, DEFAULT_MODEL) for _ in range(num_streams)]
    await all_at_once(clients[:2], 8)
    with usage_of({"gateway": gateway}) as usage:
        num_tokens, num_events = await all_at_once(clients, max_tokens)
    for client in clients:
        client.close()
    cpu_s = usage.cpu_s["gateway"]
    return {
        "streams": str(num_streams),
        "tokens": f"{num_tokens:,}",
        "tokens/s": f"{num_tokens / usage.seconds:,.0f}",
        "gateway CPU %": f"{100 * cpu_s / usage.seconds:,.0f}",
        "tokens/s of one core": f"{num_tokens / cpu_s:,.0f}",
        "tokens/event": f"{num_tokens / num_events:.2f}",
        "MiB before": f"{usage.before_mib['gateway']:.0f}",
        "MiB at most": f"{usage.most_mib['gateway']:.0f}",
        "MiB after": f"{gateway.memory_info().rss / MIB:.0f}",
    }


@benchmark
def main(
    streams: list[int] = STREAMS,
    max_tokens: int = 400,
    time_scale: Annotated[str, typer.Option(help="Of the simulated engine, for the tokens per second.")] = "0.25",
    rounds: Annotated[int, typer.Option(help="Requests for the TTFT.")] = 500,
) -> Results:
    with front_end(time_scale) as running:
        for num_streams in streams:
            yield uvloop.run(carry(running, num_streams, max_tokens))
    with front_end(INSTANT) as running:
        times = uvloop.run(first_tokens(running.port, DEFAULT_MODEL, rounds))
    yield quantiles(times, {"added TTFT p50 ms": 0.5, "p90 ms": 0.9, "p99 ms": 0.99})
