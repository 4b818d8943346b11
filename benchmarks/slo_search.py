"""What searches for a latency budget and an offline rate find and cost, in the simulator on one core:
``python -m benchmarks.slo_search --online TRACE --offline LENGTHS``.

Several SLOs on one workload, one search after another: the later ones share runs with those before. Without files,
arrivals and lengths like those of the Azure conversation trace are drawn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import print_table
from benchmarks.simulate import drawn_backlog, drawn_trace
from loadgen.progress import NoProgress
from loadgen.replay import ReplayPlan
from loadgen.report.slo import parse_slo
from loadgen.workload.backlog import load_backlog
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import read_trace
from services.profiler.simulation.setup import Machine
from services.profiler.simulation.strategy import Strategy
from services.profiler.simulation.workload import SimulatedWorkload
from services.profiler.slo.simulated import SimulatedTrials
from services.profiler.slo.trials import search_slos
from shared.scheduling.presets import PRESETS

SLOS = ("tbt_mean<=1.05x", "tbt_mean<=1.2x", "tbt_p99<=1.2x", "ttft_mean<=1.1x", "ttft_p99<=800ms")


def measure(plan: ReplayPlan, preset: str) -> Iterator[list[str]]:
    """A row for each SLO."""
    strategy, machine, duration_s = Strategy(PRESETS[preset]), Machine(), plan.scaling.duration_s
    setup = machine.setup(strategy, seed=0)
    trials = SimulatedTrials(SimulatedWorkload(plan, setup), setup, strategy, duration_s, NoProgress())
    for expr in SLOS:
        num_before, start_s = len(trials.outcomes), time.process_time()
        search = search_slos(trials, [parse_slo(expr)])
        cpu_s = time.process_time() - start_s
        found = next((trial for trial in search.trials if search.value and trial.value == search.value), None)
        yield [
            preset,
            expr,
            "none" if search.value is None else f"{search.value:.4g} {search.knob.value.rpartition('_')[2]}",
            "0" if found is None else f"{found.offline_tokens_per_s:.0f}",
            str(len(trials.outcomes) - num_before),
            f"{cpu_s:.1f}",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--online", type=Path)
    parser.add_argument("--offline", type=Path)
    parser.add_argument("--duration", type=float, default=600.0)
    parser.add_argument("--qps", type=float, default=2.0)
    options = parser.parse_args()
    scaling = Scaling(duration_s=options.duration, qps=options.qps)
    trace = read_trace(options.online) if options.online else drawn_trace(options.duration)
    plan = ReplayPlan(
        requests=scaling.apply(trace),
        prompts=load_backlog(options.offline) if options.offline else drawn_backlog(),
        scaling=scaling,
    )
    rows = [row for preset in ("hygen", "hygen-star") for row in measure(plan, preset)]
    print_table(["preset", "SLO", "largest", "offline tokens/s", "new runs", "CPU s"], rows)


if __name__ == "__main__":
    main()
