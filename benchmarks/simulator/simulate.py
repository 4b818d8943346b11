"""Speed of the simulator on one core: ``python -m benchmarks.simulator.simulate --online TRACE --offline LENGTHS``.

The trace beside the backlog under the hygen preset, on several devices; without files, arrivals and lengths like those
of the Azure conversation trace (2023: 5.4 requests/s, 1,155 prompt and 211 output tokens in the mean) are drawn.
"""

from __future__ import annotations

import time

from benchmarks.harness.command import run_command
from benchmarks.harness.table import Columns, Table
from benchmarks.lab.drawn import OfflineOption, OnlineOption, load_of
from benchmarks.lab.lab import HYGEN, Bench, Machine
from benchmarks.lab.outcome import Run

AZURE_RATE = 5.4
DEVICES = ("a100-40g", "a100-80g", "h100")
COLUMNS: Columns[tuple[str, Run, float]] = {
    "device": lambda row: row[0],
    "virtual s": lambda row: f"{row[1].end_s:.0f}",
    "steps": lambda row: str(row[1].totals.steps),
    "online done": lambda row: str(row[1].online.completed),
    "offline done": lambda row: str(row[1].offline.completed if row[1].offline else 0),
    "CPU s": lambda row: f"{row[2]:.1f}",
    "µs a step": lambda row: f"{row[2] / row[1].totals.steps * 1e6:.0f}",
    "of real time": lambda row: f"{row[1].end_s / row[2]:.0f}x",
}


def main(
    online: OnlineOption = None, offline: OfflineOption = None, duration: float = 3600.0, budget_ms: float = 50.0
) -> None:
    load, rows = load_of(online, offline, duration, None, AZURE_RATE), []
    for device in DEVICES:
        start_s = time.process_time()
        run = Bench(Machine(model="llama2-7b", device=device), load).run(HYGEN, budget_ms)
        rows.append((device, run, time.process_time() - start_s))
    print(Table.of("", COLUMNS, rows).markdown())


if __name__ == "__main__":
    run_command(main)
