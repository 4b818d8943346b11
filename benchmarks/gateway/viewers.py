"""What open dashboards cost a gateway: ``python -m benchmarks.gateway.viewers``. Gateway, bus and one executor with the
simulated engine run as in the stack, and nothing else.

Processor time and memory are those of the gateway's process; the row without viewers is what it takes by itself, with
the history that it keeps.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

import uvloop

from benchmarks.gateway.frontend import Stack, stack
from benchmarks.gateway.stream_client import wait_ready
from benchmarks.harness.table import print_table

REQUEST = b"GET /dashboard/events HTTP/1.1\r\nHost: x\r\n\r\n"
SETTLE_S = 3.0  # until the first event, which has the whole history, is with everybody


class Viewers:
    """Open connections, and what came over them."""

    def __init__(self) -> None:
        self.num_bytes = 0

    @contextlib.asynccontextmanager
    async def open(self, port: int, num_viewers: int) -> AsyncIterator[None]:
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(num_viewers)]
        for _, writer in pairs:
            writer.write(REQUEST)
        reading = [asyncio.create_task(self._read(reader)) for reader, _ in pairs]
        try:
            yield
        finally:
            for task in reading:
                task.cancel()
            for _, writer in pairs:
                writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(2**16):
            self.num_bytes += len(data)


async def measure(running: Stack, cases: Sequence[int], seconds: float) -> list[list[str]]:
    await wait_ready(running.port)
    rows = []
    for num_viewers in cases:
        viewers = Viewers()
        async with viewers.open(running.port, num_viewers):
            await asyncio.sleep(SETTLE_S)
            viewers.num_bytes, cpu_s, start = 0, running.cpu_s(), time.perf_counter()
            await asyncio.sleep(seconds)
            wall_s, cpu_s = time.perf_counter() - start, running.cpu_s() - cpu_s
            megabytes = running.gateway.memory_info().rss / 1e6
        per_viewer = viewers.num_bytes / wall_s / 1e3 / num_viewers if num_viewers else 0.0
        rows.append([str(num_viewers), f"{100 * cpu_s / wall_s:.1f}", f"{per_viewer:.1f}", f"{megabytes:.0f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each row")
    parser.add_argument("--viewers", type=int, nargs="+", default=[0, 1, 100])
    arguments = parser.parse_args()
    with stack("1") as running:
        rows = uvloop.run(measure(running, arguments.viewers, arguments.seconds))
    print_table(["viewers", "gateway CPU % of a core", "kB/s to each", "gateway's memory MB"], rows)


if __name__ == "__main__":
    main()
