"""Speed of the simulator on one core: ``python -m benchmarks.simulate --online TRACE --offline LENGTHS``.

The trace beside the backlog under the hygen preset, on several devices; without files, arrivals and lengths like those
of the Azure conversation trace (2023: 5.4 requests/s, 1,155 prompt and 211 output tokens in the mean) are drawn.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

from benchmarks.figures import print_table
from loadgen.progress import NoProgress
from loadgen.replay import ReplayPlan
from loadgen.workload.backlog import OfflinePrompt, load_backlog
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import TraceRequest, read_trace
from services.profiler.simulation.setup import Machine, make_strategy
from services.profiler.simulation.simulation import Simulation

RATE, PROMPT_TOKENS, OUTPUT_TOKENS = 5.4, 1155, 211
OFFLINE_PROMPT_TOKENS, OFFLINE_OUTPUT_TOKENS, BACKLOG = 2588, 291, 28_000
DEVICES = ("a100-40g", "a100-80g", "h100")


def drawn_trace(duration_s: float) -> list[TraceRequest]:
    """Poisson arrivals with exponential lengths."""
    rng, now_s, requests = random.Random(0), 0.0, []
    while now_s < duration_s:
        prompt, output = rng.expovariate(1 / PROMPT_TOKENS), rng.expovariate(1 / OUTPUT_TOKENS)
        requests.append(TraceRequest(now_s, 1 + int(prompt), 1 + int(output)))
        now_s += rng.expovariate(RATE)
    return requests


def drawn_backlog() -> list[OfflinePrompt]:
    return [OfflinePrompt(OFFLINE_OUTPUT_TOKENS, num_prompt_tokens=OFFLINE_PROMPT_TOKENS)] * BACKLOG


def measure(plan: ReplayPlan, device: str, budget_ms: float) -> list[str]:
    """One run; the cells of its row."""
    strategy = make_strategy("hygen", budget_ms, None)
    start_s = time.process_time()
    simulation = Simulation(plan, Machine(device=device).setup(strategy, 0), strategy, "sim://benchmark", NoProgress())
    simulation.run()
    report = simulation.report(partial=False)
    cpu_s = time.process_time() - start_s
    phase = simulation.phases["replay"]
    assert report.online is not None and report.offline is not None
    steps = phase.executor.num_steps
    return [
        device,
        f"{phase.now_s:.0f}",
        str(steps),
        str(report.online.completed),
        str(report.offline.completed),
        f"{cpu_s:.1f}",
        f"{cpu_s / steps * 1e6:.0f}",
        f"{phase.now_s / cpu_s:.0f}x",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--online", type=Path)
    parser.add_argument("--offline", type=Path)
    parser.add_argument("--duration", type=float, default=3600.0)
    parser.add_argument("--budget-ms", type=float, default=50.0)
    options = parser.parse_args()
    scaling = Scaling(duration_s=options.duration)
    plan = ReplayPlan(
        requests=scaling.apply(read_trace(options.online)) if options.online else drawn_trace(options.duration),
        prompts=load_backlog(options.offline) if options.offline else drawn_backlog(),
        scaling=scaling,
        model="llama2-7b",
    )
    header = ["device", "virtual s", "steps", "online done", "offline done", "CPU s", "µs a step", "of real time"]
    print_table(header, [measure(plan, device, options.budget_ms) for device in DEVICES])


if __name__ == "__main__":
    main()
