"""Systems side by side as the online rate grows: latency, attainment and what offline work gets, and what scheduling
takes of an iteration."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from unittest.mock import patch

from benchmarks.figures.rate_lab import RateLab, Scene
from benchmarks.harness.charts import Curves, Point, Style
from benchmarks.harness.command import Row, formatted, quantiles
from benchmarks.harness.page import Result
from benchmarks.harness.turns import Times
from benchmarks.lab.lab import System
from benchmarks.lab.outcome import Measured, Run
from benchmarks.lab.samples import BOOSTED
from loadgen.client.records import RequestRecord
from loadgen.report.metrics import online_report
from shared.protocol.executors import ExecutorCounters
from shared.scheduling.orders.offline.view import OfflineQueue
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.packings import PACKINGS
from shared.scheduling.schedule import Schedule, ScheduledRequest

LATENCY, TTFT_SHARE, TPOT_SHARE = "normalized latency (ms)", "TTFT attainment (%)", "TPOT attainment (%)"
OFFLINE, TTFT_P99, ONLINE_TOKENS = "offline requests/s", "TTFT p99 (ms)", "online output tokens/s"
QUEUEING = "queueing (% of a request's time)"
SHARES = (TTFT_SHARE, TPOT_SHARE)
QUANTITIES: dict[str, Callable[[Run], float]] = {
    LATENCY: lambda run: run.latency_or_zero_ms("normalized_latency_mean"),
    TTFT_SHARE: lambda run: 100 * run.attained["ttft"],
    TPOT_SHARE: lambda run: 100 * run.attained["tpot"],
    OFFLINE: lambda run: run.offline_requests_per_s,
    TTFT_P99: lambda run: run.latency_or_zero_ms("ttft_p99"),
    ONLINE_TOKENS: lambda run: run.online.output_tokens_per_s,
}


def by_rate(
    lab: RateLab,
    scene: Scene,
    systems: Mapping[str, System],
    colours: Sequence[str],
    quantities: Sequence[str],
    caption: str,
    more: Callable[[Run], Row] = lambda run: {},
) -> Result:
    """``systems``: by the names of their lines, in the order of ``colours``; ``quantities``: names in ``QUANTITIES``;
    ``more``: cells of the table."""
    budget_ms = lab.options.budget_ms
    points = []
    for dataset in scene.datasets:
        for rate in lab.rates(scene):
            for name, system in systems.items():
                run = lab.bench(scene, dataset, rate).run(system, system.budget(budget_ms))
                values = {quantity: QUANTITIES[quantity](run) for quantity in quantities}
                where = {"dataset": dataset.name, "requests/s": f"{rate:g}", "system": name}
                cells = {**where, **_cells(run), **more(run)}
                points.append(Point(dataset.name, "", name, rate, values, cells))
    budget = f"; hygen's latency budget is {budget_ms:g} ms"
    is_told = any(system.strategy.uses_latency_budget for system in systems.values())
    described = f"{caption} {lab.where(scene)}{budget if is_told else ''}."
    styles = {name: ("o-", colour) for name, colour in zip(systems, colours, strict=True)}
    return Curves("online requests/s", styles).result(points, described, 1.8 + 1.2 * len(scene.datasets))


def _latencies(measured: Measured) -> Row:
    return {
        "normalized latency ms": f"{measured.latency_or_zero_ms('normalized_latency_mean'):.1f}",
        "TTFT p99 ms": f"{measured.latency_or_zero_ms('ttft_p99'):,.0f}",
    }


def _cells(run: Run) -> Row:
    return {
        **_latencies(run),
        **formatted(".1%", {"TTFT attained": run.attained["ttft"], "TPOT attained": run.attained["tpot"]}),
        "offline requests/s": f"{run.offline_requests_per_s:.2f}",
        "preemptions": str(run.totals.preemptions),
    }


def online_cells(run: Run) -> Row:
    """What online requests alone got."""
    return {
        "TBT p99 ms": f"{run.latency_or_zero_ms('tbt_p99'):.0f}",
        ONLINE_TOKENS: f"{QUANTITIES[ONLINE_TOKENS](run):,.0f}",
    }


def kv_cells(run: Run) -> Row:
    """What became of KV."""
    totals = run.totals
    return {
        "TBT p99 ms": f"{run.latency_or_zero_ms('tbt_p99'):.0f}",
        "offline tokens/s": f"{totals.offline_tokens / run.end_s:.0f}",
        **formatted(",", {"prompt tokens computed": totals.prompt_tokens, "found in the cache": totals.cached_tokens}),
        "pauses": str(totals.pauses),
        **formatted(",", {"slots to the host": totals.checkpointed_slots, "and back": totals.restored_slots}),
        "steps waited for them s": f"{totals.copy_wait_s:.2f}",
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
    points = []
    for name in styles:
        system = System.of(name, BOOSTED)
        packing = PACKINGS[system.strategy.packing]
        for rate in lab.rates(scene):
            bench = lab.bench(scene, dataset, rate)
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


@dataclass(slots=True)
class Queueing:
    """What online requests wait: of the time from their arrival to their end, what is left without the steps that gave
    them tokens. Earlier chunks of a prompt that is longer than a step count as waiting."""

    _busy_s: float = 0.0
    _step_s: dict[float, float] = field(default_factory=dict)  # by when it ended

    def on_step(self, now_s: float, totals: ExecutorCounters) -> None:
        self._step_s[now_s] = totals.busy_s - self._busy_s
        self._busy_s = totals.busy_s

    def share(self, records: Iterable[RequestRecord]) -> float:
        """The mean over all."""
        return fmean(map(self._share_of, records))

    def _share_of(self, record: RequestRecord) -> float:
        assert record.finished_s is not None
        running_s = sum(map(self._step_s.__getitem__, record.token_times_s))
        return 1 - running_s / (record.finished_s - record.due_s)


def queueing(lab: RateLab, scene: Scene, systems: Mapping[str, System], colours: Sequence[str]) -> Result:
    """BROS figure 3: what waiting is of a request's time, and what time a token takes with it."""
    points = []
    for dataset in scene.datasets:
        for rate in lab.rates(scene):
            bench = lab.bench(scene, dataset, rate)
            for name, system in systems.items():
                waits = Queueing()
                records = bench.watch(system, None, waits.on_step)
                measured, share = (
                    Measured(online_report(records, 0.0, bench.load.duration_s), None),
                    waits.share(records),
                )
                values = {LATENCY: measured.latency_or_zero_ms("normalized_latency_mean"), QUEUEING: 100 * share}
                where = {"dataset": dataset.name, "requests/s": f"{rate:g}", "system": name}
                cells = {**where, **_latencies(measured), "queueing": f"{share:.1%}"}
                points.append(Point(dataset.name, "", name, rate, values, cells))
    styles = {name: ("o-", colour) for name, colour in zip(systems, colours, strict=True)}
    caption = f"Online requests alone, what they wait of their time. {lab.where(scene)}."
    return Curves("online requests/s", styles).result(points, caption, 3.0)
