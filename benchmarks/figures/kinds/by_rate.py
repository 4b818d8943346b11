"""Systems side by side as the online rate grows: latency, attainment and what offline work gets, and what scheduling
takes of an iteration."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from unittest.mock import patch

from benchmarks.figures.rate_lab import RateLab, Scene
from benchmarks.harness.charts import Curves, Point, Style
from benchmarks.harness.command import Row, formatted, quantiles
from benchmarks.harness.page import Result
from benchmarks.harness.turns import Times
from benchmarks.lab.lab import System
from benchmarks.lab.outcome import Run
from benchmarks.lab.samples import boosted_model
from shared.scheduling.orders.offline.view import OfflineQueue
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.packings import PACKINGS
from shared.scheduling.schedule import Schedule, ScheduledRequest

LATENCY, TTFT_SHARE, TPOT_SHARE = "normalized latency (ms)", "TTFT attainment (%)", "TPOT attainment (%)"
OFFLINE, TTFT_P99 = "offline requests/s", "TTFT p99 (ms)"
SHARES = (TTFT_SHARE, TPOT_SHARE)
QUANTITIES: dict[str, Callable[[Run], float]] = {
    LATENCY: lambda run: run.latency_or_zero_ms("normalized_latency_mean"),
    TTFT_SHARE: lambda run: 100 * run.attained["ttft"],
    TPOT_SHARE: lambda run: 100 * run.attained["tpot"],
    OFFLINE: lambda run: run.offline_requests_per_s,
    TTFT_P99: lambda run: run.latency_or_zero_ms("ttft_p99"),
}
BOOSTED = "boosted"  # the planner


def by_rate(
    lab: RateLab,
    scene: Scene,
    systems: Mapping[str, System],
    colours: Sequence[str],
    quantities: Sequence[str],
    caption: str,
    with_kv: bool = False,
) -> Result:
    """``systems``: by the names of their lines, in the order of ``colours``; ``quantities``: names in ``QUANTITIES``;
    ``with_kv``: what became of KV is in the table."""
    budget_ms = lab.options.budget_ms
    points = []
    for dataset in scene.datasets:
        for rate in lab.rates(scene):
            for name, system in systems.items():
                run = lab.bench(scene, dataset, rate).run(system, system.budget(budget_ms))
                values = {quantity: QUANTITIES[quantity](run) for quantity in quantities}
                where = {"dataset": dataset.name, "requests/s": f"{rate:g}", "system": name}
                cells = {**where, **_cells(run), **(_kv_cells(run) if with_kv else {})}
                points.append(Point(dataset.name, "", name, rate, values, cells))
    described = f"{caption} {lab.where(scene)}; hygen's latency budget is {budget_ms:g} ms."
    styles = {name: ("o-", colour) for name, colour in zip(systems, colours, strict=True)}
    return Curves("online requests/s", styles).result(points, described, 1.8 + 1.2 * len(scene.datasets))


def _cells(run: Run) -> Row:
    return {
        "normalized latency ms": f"{run.latency_or_zero_ms('normalized_latency_mean'):.1f}",
        "TTFT p99 ms": f"{run.latency_or_zero_ms('ttft_p99'):,.0f}",
        **formatted(".1%", {"TTFT attained": run.attained["ttft"], "TPOT attained": run.attained["tpot"]}),
        "offline requests/s": f"{run.offline_requests_per_s:.2f}",
        "preemptions": str(run.totals.preemptions),
    }


def _kv_cells(run: Run) -> Row:
    totals = run.totals
    return {
        "TBT p99 ms": f"{run.latency_or_zero_ms('tbt_p99'):.0f}",
        "offline tokens/s": f"{totals.offline_tokens / run.end_s:.0f}",
        **formatted(",", {"prompt tokens computed": totals.prompt_tokens, "found in the cache": totals.cached_tokens}),
        "pauses": str(totals.pauses),
        **formatted(",", {"slots to the host": totals.checkpointed_slots, "and back": totals.restored_slots}),
    }


@dataclass
class Timed:
    """Counts the CPU time of each plan of a packing, made while the step before runs, and of fitting it again to what
    the executor knows, which on a running stack each plan meets and the step waits for."""

    plan: Callable[[StepState, OfflineQueue], Schedule]
    reconcile: Callable[[StepState, Sequence[ScheduledRequest], Iterable[str]], Schedule]
    plans: Times = field(default_factory=partial(Times, processor_s=time.thread_time))
    reconciles: Times = field(default_factory=partial(Times, processor_s=time.thread_time))
    num_scheduled: int = 0
    steps_ms: float = 0.0

    @property
    def share(self) -> float:
        """Of the steps' time."""
        return sum(self.plans.cpu_ms + self.reconciles.cpu_ms) / self.steps_ms

    def cells(self, system: str, rate: float) -> Row:
        num_plans = len(self.plans.cpu_ms)
        return {
            "system": system,
            "requests/s": f"{rate:g}",
            "plans": f"{num_plans:,}",
            "requests in a step": f"{self.num_scheduled / num_plans:.0f}",
            "step ms": f"{self.steps_ms / num_plans:.1f}",
            **quantiles(sorted(self.plans.cpu_ms), {"plan ms p50": 0.5, "plan ms p99": 0.99}, digits=3),
            **quantiles(sorted(self.reconciles.cpu_ms), {"reconcile ms p50": 0.5}, digits=3),
            "share of the step": f"{self.share:.2%}",
        }

    def schedule(self, state: StepState, offline_queue: OfflineQueue) -> Schedule:
        schedule = self.plans.time(partial(self.plan, state, offline_queue))
        self.reconciles.time(partial(self.reconcile, state, schedule.entries, schedule.preempted))
        self.num_scheduled += len(schedule.entries)
        self.steps_ms += schedule.latency_ms
        return schedule


def overhead(lab: RateLab, scene: Scene, styles: dict[str, Style]) -> Result:
    """BROS figure 14. ``styles``: of presets. CPU time on this machine."""
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
