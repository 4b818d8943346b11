"""Speed of the simulator on one core: ``python -m benchmarks.simulator.simulate --online TRACE --offline LENGTHS``.

The trace beside the backlog under each preset, on several devices; without files, arrivals and lengths like those
of the Azure conversation trace (2023: 5.4 requests/s, 1,155 prompt and 211 output tokens in the mean) are drawn.
"""

import time
from itertools import product
from typing import Annotated

import typer

from benchmarks.harness.command import Results, benchmark, formatted
from benchmarks.lab.drawn import OfflineOption, OnlineOption, load_of
from benchmarks.lab.lab import Bench, Machine, System
from shared.process.memory import collect_seldom

AZURE_RATE = 5.4
PRESETS, DEVICES = ["hygen"], ["a100-40g", "a100-80g", "h100"]


@benchmark
def main(
    online: OnlineOption = None,
    offline: OfflineOption = None,
    duration: float = 3600.0,
    budget_ms: Annotated[float, typer.Option(help="Of each step, for presets that have one.")] = 50.0,
    presets: Annotated[list[str], typer.Option("--preset")] = PRESETS,
    devices: Annotated[list[str], typer.Option("--device")] = DEVICES,
) -> Results:
    collect_seldom()
    load = load_of(online, offline, duration, None, AZURE_RATE)
    for preset, device in product(presets, devices):
        system = System.of(preset)
        start_s = time.process_time()
        run = Bench(Machine(model="llama2-7b", device=device), load).run(system, system.budget(budget_ms))
        cpu_s = time.process_time() - start_s
        yield {
            "preset": preset,
            "device": device,
            "virtual s": f"{run.end_s:.0f}",
            **formatted("d", {"steps": run.totals.steps, "online done": run.online.completed}),
            "offline done": str(run.offline.completed if run.offline else 0),
            "CPU s": f"{cpu_s:.1f}",
            "µs a step": f"{cpu_s / run.totals.steps * 1e6:.0f}",
            "of real time": f"{run.end_s / cpu_s:.0f}x",
        }
