"""What scheduling takes of an iteration (BROS figure 14)."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.figures.kinds.curves import Curves, Point, Style
from benchmarks.figures.rate_lab import RateLab, Scene
from benchmarks.harness.page import Result
from benchmarks.harness.table import Row, quantiles
from benchmarks.lab.lab import System
from benchmarks.lab.samples import boosted_model
from shared.scheduling.orders.offline.view import OfflineQueue
from shared.scheduling.packing.packing import Packing, StepState
from shared.scheduling.packing.packings import PACKINGS
from shared.scheduling.schedule import Schedule, ScheduledRequest

BOOSTED = "boosted"  # the planner


class TimedPacking:
    """Counts the CPU time of each plan, and of fitting it again to what the executor knows, which each plan meets on
    a running stack. The second is the only one that a step waits for: plans are made while the step before runs."""

    def __init__(self, packing: Packing) -> None:
        self.uses_time = packing.uses_time
        self.orders_online = packing.orders_online
        self.keeps_plans = packing.keeps_plans
        self.latency_budgets = packing.latency_budgets
        self.offline_orders = packing.offline_orders
        self.plans_ms: list[float] = []
        self.reconciles_ms: list[float] = []
        self.num_scheduled = 0
        self.steps_ms = 0.0
        self._packing = packing

    @property
    def share(self) -> float:
        """Of the steps' time."""
        return (sum(self.plans_ms) + sum(self.reconciles_ms)) / self.steps_ms

    def cells(self, system: str, rate: float) -> Row:
        num_plans = len(self.plans_ms)
        return {
            "system": system,
            "requests/s": f"{rate:g}",
            "plans": f"{num_plans:,}",
            "requests in a step": f"{self.num_scheduled / num_plans:.0f}",
            "step ms": f"{self.steps_ms / num_plans:.1f}",
            **quantiles(sorted(self.plans_ms), {"plan ms p50": 0.5, "plan ms p99": 0.99}, digits=3),
            **quantiles(sorted(self.reconciles_ms), {"reconcile ms p50": 0.5}, digits=3),
            "share of the step": f"{self.share:.2%}",
        }

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


def overhead(lab: RateLab, scene: Scene, styles: dict[str, Style]) -> Result:
    """``styles``: of presets. CPU time on this machine."""
    (dataset,) = scene.datasets
    planner, points = boosted_model(lab.machine(scene)), []
    for name in styles:
        system = System.of(name, BOOSTED)
        for rate in lab.rates(scene):
            bench = lab.bench(scene, dataset, rate)
            bench.planners[BOOSTED] = planner
            with _timed(system.strategy.packing) as timed:
                bench.watch(system, system.budget(lab.options.budget_ms), lambda now_s, totals: None)
            share = {"scheduling over step time (%)": 100 * timed.share}
            points.append(Point("", dataset.name, name, rate, share, timed.cells(name, rate)))
    caption = (
        "CPU time of planning and reconciling each step on this machine, over the step's time on the GPU; plans are "
        f"made with a boosted model. {lab.where(scene)}; {dataset.name}."
    )
    return Curves("online requests/s", styles).result(points, caption, 3.0)


@contextmanager
def _timed(name: str) -> Iterator[TimedPacking]:
    """The packing of this name, with a clock."""
    untimed = PACKINGS[name]
    timed = PACKINGS[name] = TimedPacking(untimed)
    try:
        yield timed
    finally:
        PACKINGS[name] = untimed
