"""What scheduling takes of an iteration (BROS figure 14)."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

from benchmarks.figures.rate_lab import RateLab, Scene
from benchmarks.harness.charts import Curves, Point, Style
from benchmarks.harness.command import Row, quantiles
from benchmarks.harness.page import Result
from benchmarks.lab.lab import System
from benchmarks.lab.samples import boosted_model
from shared.scheduling.orders.offline.view import OfflineQueue
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.packings import PACKINGS
from shared.scheduling.schedule import Schedule, ScheduledRequest

BOOSTED = "boosted"  # the planner


@dataclass
class Timed:
    """Counts the CPU time of each plan of a packing, and of fitting it again to what the executor knows, which each
    plan meets on a running stack. The second is the only one that a step waits for: plans are made while the step
    before runs."""

    plan: Callable[[StepState, OfflineQueue], Schedule]
    reconcile: Callable[[StepState, Sequence[ScheduledRequest], Iterable[str]], Schedule]
    plans_ms: list[float] = field(default_factory=list)
    reconciles_ms: list[float] = field(default_factory=list)
    num_scheduled: int = 0
    steps_ms: float = 0.0

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
        schedule = self.plan(state, offline_queue)
        planned_s = time.thread_time()
        self.reconcile(state, schedule.entries, schedule.preempted)
        self.plans_ms.append((planned_s - start_s) * 1e3)
        self.reconciles_ms.append((time.thread_time() - planned_s) * 1e3)
        self.num_scheduled += len(schedule.entries)
        self.steps_ms += schedule.latency_ms
        return schedule


def overhead(lab: RateLab, scene: Scene, styles: dict[str, Style]) -> Result:
    """``styles``: of presets. CPU time on this machine."""
    (dataset,) = scene.datasets
    planner, points = boosted_model(lab.machine(scene)), []
    for name in styles:
        system = System.of(name, BOOSTED)
        packing = PACKINGS[system.strategy.packing]
        for rate in lab.rates(scene):
            bench = lab.bench(scene, dataset, rate)
            bench.planners[BOOSTED] = planner
            timed = Timed(packing.schedule, packing.reconcile)
            with patch.object(packing, "schedule", timed.schedule):
                bench.watch(system, system.budget(lab.options.budget_ms), lambda now_s, totals: None)
            share = {"scheduling over step time (%)": 100 * timed.share}
            points.append(Point("", dataset.name, name, rate, share, timed.cells(name, rate)))
    caption = (
        "CPU time of planning and reconciling each step on this machine, over the step's time on the GPU; plans are "
        f"made with a boosted model. {lab.where(scene)}; {dataset.name}."
    )
    return Curves("online requests/s", styles).result(points, caption, 3.0)
