"""What open dashboards cost a gateway: ``python -m benchmarks.gateway.viewers``. Gateway, bus and one executor with the
simulated engine run as in the stack, and nothing else.

Processor time and memory are those of the gateway's process; the row without viewers is what it takes by itself, with
the history that it keeps.
"""

import asyncio
from typing import Annotated

import typer
import uvloop

from benchmarks.gateway.frontend import front_end
from benchmarks.harness.command import Results, Row, benchmark
from benchmarks.harness.stack import MIB, Stack, usage_of

REQUEST = b"GET /dashboard/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
SETTLE_S = 3.0  # until the first event, which has the whole history, is with everybody
VIEWERS = [0, 1, 100]


async def measure(running: Stack, num_viewers: int, seconds: float) -> Row:
    num_bytes = 0

    async def view(reader: asyncio.StreamReader) -> None:
        nonlocal num_bytes
        while data := await reader.read(2**16):
            num_bytes += len(data)

    pairs = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(num_viewers)]
    for _, writer in pairs:
        writer.write(REQUEST)
    viewing = [asyncio.create_task(view(reader)) for reader, _ in pairs]
    await asyncio.sleep(SETTLE_S)
    num_bytes = 0
    with usage_of({"gateway": running.processes["gateway"]}) as usage:
        await asyncio.sleep(seconds)
    for task, (_, writer) in zip(viewing, pairs, strict=True):
        task.cancel()
        writer.close()
    cpu_share = usage.cpu_s["gateway"] / usage.seconds
    return {
        "viewers": str(num_viewers),
        "gateway CPU % of a core": f"{100 * cpu_share:.1f}",
        "kB/s to each": f"{num_bytes / usage.seconds / 1e3 / (num_viewers or 1):.1f}",
        "gateway's memory MB": f"{usage.most_mib['gateway'] * MIB / 1e6:.0f}",
    }


@benchmark
def main(seconds: Annotated[float, typer.Option(help="Of each row.")] = 20.0, viewers: list[int] = VIEWERS) -> Results:
    with front_end("1") as running:
        for num_viewers in viewers:
            yield uvloop.run(measure(running, num_viewers, seconds))
