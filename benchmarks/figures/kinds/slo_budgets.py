"""The budget that keeps an SLO on mean TBT: against the naive one, and beside a second SLO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.figures.kinds.curves import Curves, Point
from benchmarks.figures.metrics import MEAN_TBT, P99_TTFT, Metric
from benchmarks.figures.trace_lab import Setting, TraceLab
from benchmarks.harness.charts import BLUE, ORANGE, RED
from benchmarks.harness.page import Result
from benchmarks.harness.table import Columns
from benchmarks.lab.lab import HYGEN, Bench
from benchmarks.lab.outcome import Found, Measured

NAIVE, PROFILED = "budget = the SLO", "budget of the profiler"
TOLERATED = "tolerated mean TBT interference (%)"


@dataclass(frozen=True, slots=True)
class Held:
    """A run under a budget, and the metric whose ratio to online only is shown."""

    bench: Bench
    metric: Metric
    budget: str
    measured: Measured
    tolerance: float  # of the metric
    bounded_by: str = ""

    @property
    def ratio(self) -> float:
        return self.metric.ratio(self.bench, self.measured)

    @property
    def slo(self) -> str:
        slo_ms = (1 + self.tolerance) * self.bench.online_only.latency_ms(self.metric.name)
        return f"{1 + self.tolerance:.2f}x = {slo_ms:.1f} ms"

    @property
    def reached(self) -> str:
        return f"{self.ratio:.3f}x" + (" BROKEN" if self.ratio > 1 + self.tolerance else "")

    @property
    def throughput(self) -> str:
        return f"{self.measured.offline_tokens_per_s:,.0f}"


BUDGETS: Curves[Held] = Curves(
    xlabel=TOLERATED,
    styles={PROFILED: ("o-", BLUE), NAIVE: ("v-", RED)},
    quantities={"mean TBT, ratio to online only": lambda held: held.ratio},
    bounds={"SLO": lambda x: 1 + x / 100},
    from_zero=False,
)


COLUMNS: Columns[Point[Held]] = {
    "setting": lambda point: point.column,
    "line": lambda point: point.series,
    "SLO": lambda point: point.value.slo,
    "budget ms": lambda point: point.value.budget,
    "reached": lambda point: point.value.reached,
    "offline tokens/s": lambda point: point.value.throughput,
}
BOUNDED: Columns[Point[Held]] = {**COLUMNS, "bounded by": lambda point: point.value.bounded_by}


def naive_budgets(lab: TraceLab, settings: Sequence[Setting]) -> Result:
    """A budget equal to the SLO, and the profiler's (HyGen figure 7)."""
    points = []
    for setting in settings:
        bench = lab.bench(setting)
        for tolerance in lab.options.tolerances:
            slo_ms = (1 + tolerance) * bench.online_only.latency_ms(MEAN_TBT.name)
            naive, found = bench.run(HYGEN, slo_ms), bench.largest(HYGEN, [MEAN_TBT.slo(tolerance)])
            for series, budget, measured in ((NAIVE, f"{slo_ms:.1f}", naive), (PROFILED, found.text, found.measured)):
                held = Held(bench, MEAN_TBT, budget, measured, tolerance)
                points.append(Point("", setting.name, series, 100 * tolerance, held))
    caption = f"A latency budget equal to the mean TBT SLO, and the profiler's. {lab.where(settings)}."
    return BUDGETS.result(points, caption, COLUMNS, 3.2)


def two_slos(
    lab: TraceLab, settings: Sequence[Setting], tbt_tolerances: Sequence[float], ttft_tolerance: float
) -> Result:
    """One fixed on p99 TTFT and a growing one on mean TBT (HyGen figure 11)."""
    shown: Curves[Held] = Curves(
        xlabel=TOLERATED,
        styles={MEAN_TBT.label: ("o-", BLUE), P99_TTFT.label: ("s-", ORANGE)},
        quantities={"ratio to online only": lambda held: held.ratio},
        bounds={"mean TBT SLO": lambda x: 1 + x / 100, "p99 TTFT SLO": lambda x: 1 + ttft_tolerance},
        from_zero=False,
    )
    points = []
    for setting in settings:
        bench = lab.bench(setting)
        for tolerance in tbt_tolerances:
            found, bounded_by = _both(bench, tolerance, ttft_tolerance)
            for metric, own in ((MEAN_TBT, tolerance), (P99_TTFT, ttft_tolerance)):
                held = Held(bench, metric, found.text, found.measured, own, bounded_by)
                points.append(Point("", setting.name, metric.label, 100 * tolerance, held))
    return shown.result(points, f"hygen under two SLOs at once. {lab.where(settings)}.", BOUNDED, 3.2)


def _both(bench: Bench, tbt_tolerance: float, ttft_tolerance: float) -> tuple[Found, str]:
    """What keeps both, and which of them bounds it."""
    alone = bench.largest(HYGEN, [MEAN_TBT.slo(tbt_tolerance)])
    found = bench.largest(HYGEN, [MEAN_TBT.slo(tbt_tolerance), P99_TTFT.slo(ttft_tolerance)])
    return found, (MEAN_TBT if found.value == alone.value else P99_TTFT).label
