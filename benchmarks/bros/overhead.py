"""Figure 14: what scheduling takes of an iteration."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.bros.bench import Bench
from benchmarks.bros.workload import SHAREGPT
from benchmarks.charts import BLUE, ORANGE, legend_above, panels
from benchmarks.figures import quantile
from benchmarks.page import Result, Table
from benchmarks.schedules import boosted_model
from shared.latency.model import LatencyModel
from shared.scheduling.batch import Schedule, ScheduledRequest
from shared.scheduling.orders.offline.view import OfflineQueue
from shared.scheduling.packing.packing import Packing, StepState
from shared.scheduling.packing.packings import PACKINGS
from shared.scheduling.presets import preset_named

SYSTEMS = ("bros", "hygen")
COLOURS = dict(zip(SYSTEMS, (BLUE, ORANGE), strict=True))
HEADER = (
    "system",
    "requests/s",
    "plans",
    "requests in a step",
    "step ms",
    "plan ms p50",
    "plan ms p99",
    "reconcile ms p50",
    "share of the step",
)


class TimedPacking:
    """Counts the CPU time of each plan, and of fitting it again to what the executor knows, which each plan meets on
    a running stack. The second is the only one that a step waits for: plans are made while the step before runs."""

    def __init__(self, packing: Packing) -> None:
        self.uses_time = packing.uses_time
        self.plans_ms: list[float] = []
        self.reconciles_ms: list[float] = []
        self.num_scheduled = 0
        self.steps_ms = 0.0
        self._packing = packing

    def schedule(self, state: StepState, offline_queue: OfflineQueue) -> Schedule:
        start_s = time.thread_time()
        schedule = self._packing.schedule(state, offline_queue)
        planned_s = time.thread_time()
        self._packing.reconcile(state, schedule.entries, schedule.preempted)
        self.plans_ms.append((planned_s - start_s) * 1e3)
        self.reconciles_ms.append((time.thread_time() - planned_s) * 1e3)
        self.num_scheduled += len(schedule.entries)
        self.steps_ms += schedule.latency_ms
        return schedule

    def reconcile(self, state: StepState, plan: Sequence[ScheduledRequest], preempted: Iterable[str]) -> Schedule:
        return self._packing.reconcile(state, plan, preempted)


def make(bench: Bench) -> Result:
    figure, axes = panels(1, 1, 3.0)
    panel, planner, rows = axes[0][0], boosted_model(bench.inputs.machine), []
    for system in SYSTEMS:
        shares = []
        for rate in bench.inputs.rates:
            row, share = _run(bench, planner, system, rate)
            rows.append(row)
            shares.append(100 * share)
        panel.plot(bench.inputs.rates, shares, "o-", color=COLOURS[system], label=system)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("online requests/s")
    panel.set_ylabel("scheduling over step time (%)")
    legend_above(figure, *panel.get_legend_handles_labels())
    caption = (
        f"CPU time of planning and reconciling each step on this machine, over the step's time on the GPU; plans are "
        f"made with a boosted model. "
        f"{bench.inputs.setting}; {SHAREGPT.name}."
    )
    return Result("overhead", [Table(caption, HEADER, rows)], figure)


def _run(bench: Bench, planner: LatencyModel, system: str, rate: float) -> tuple[list[str], float]:
    """The row, and scheduling's share of the steps."""
    preset = preset_named(system)
    with _timed(preset.packing) as timed:
        bench.phase(preset, SHAREGPT, rate, planner=planner).run()
    num_plans = len(timed.plans_ms)
    share = (sum(timed.plans_ms) + sum(timed.reconciles_ms)) / timed.steps_ms
    plans_ms = sorted(timed.plans_ms)
    row = [
        system,
        f"{rate:g}",
        f"{num_plans:,}",
        f"{timed.num_scheduled / num_plans:.0f}",
        f"{timed.steps_ms / num_plans:.1f}",
        f"{quantile(plans_ms, 0.5):.3f}",
        f"{quantile(plans_ms, 0.99):.3f}",
        f"{quantile(sorted(timed.reconciles_ms), 0.5):.3f}",
        f"{share:.2%}",
    ]
    return row, share


@contextmanager
def _timed(name: str) -> Iterator[TimedPacking]:
    """The packing of this name, with a clock."""
    untimed = PACKINGS[name]
    timed = PACKINGS[name] = TimedPacking(untimed)
    try:
        yield timed
    finally:
        PACKINGS[name] = untimed
