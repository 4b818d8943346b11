"""The budget that keeps an SLO on mean TBT: against the naive one, and beside a second SLO."""

from collections.abc import Sequence

from benchmarks.figures.kinds.curves import Curves, Point
from benchmarks.figures.metrics import MEAN_TBT, P99_TTFT, Metric
from benchmarks.figures.trace_lab import Setting, TraceLab
from benchmarks.harness.charts import BLUE, ORANGE, RED
from benchmarks.harness.page import Result
from benchmarks.harness.table import Row
from benchmarks.lab.lab import HYGEN, Bench
from benchmarks.lab.outcome import Measured

NAIVE, PROFILED = "budget = the SLO", "budget of the profiler"
TOLERATED = "tolerated mean TBT interference (%)"


def naive_budgets(lab: TraceLab, settings: Sequence[Setting]) -> Result:
    """A budget equal to the SLO, and the profiler's (HyGen figure 7)."""
    shown = Curves(
        TOLERATED,
        styles={PROFILED: ("o-", BLUE), NAIVE: ("v-", RED)},
        bounds={"SLO": lambda x: 1 + x / 100},
        from_zero=False,
    )
    points = []
    for setting in settings:
        bench = lab.bench(setting)
        for tolerance in lab.options.tolerances:
            slo_ms = (1 + tolerance) * bench.online_only.latency_ms(MEAN_TBT.name)
            naive, found = bench.run(HYGEN, slo_ms), bench.largest(HYGEN, [MEAN_TBT.slo(tolerance)])
            for series, budget, measured in ((NAIVE, f"{slo_ms:.1f}", naive), (PROFILED, found.text, found.measured)):
                ratio = {"mean TBT, ratio to online only": MEAN_TBT.ratio(bench, measured)}
                cells = {
                    "setting": setting.name,
                    "line": series,
                    **_cells(bench, MEAN_TBT, tolerance, budget, measured),
                }
                points.append(Point("", setting.name, series, 100 * tolerance, ratio, cells))
    caption = f"A latency budget equal to the mean TBT SLO, and the profiler's. {lab.where(settings)}."
    return shown.result(points, caption, 3.2)


def two_slos(
    lab: TraceLab, settings: Sequence[Setting], tbt_tolerances: Sequence[float], ttft_tolerance: float
) -> Result:
    """One fixed on p99 TTFT and a growing one on mean TBT (HyGen figure 11)."""
    shown = Curves(
        TOLERATED,
        styles={MEAN_TBT.label: ("o-", BLUE), P99_TTFT.label: ("s-", ORANGE)},
        bounds={"mean TBT SLO": lambda x: 1 + x / 100, "p99 TTFT SLO": lambda x: 1 + ttft_tolerance},
        from_zero=False,
    )
    points = []
    for setting in settings:
        bench = lab.bench(setting)
        for tolerance in tbt_tolerances:
            alone = bench.largest(HYGEN, [MEAN_TBT.slo(tolerance)])
            found = bench.largest(HYGEN, [MEAN_TBT.slo(tolerance), P99_TTFT.slo(ttft_tolerance)])
            bounding = MEAN_TBT if found.value == alone.value else P99_TTFT
            for metric, own in ((MEAN_TBT, tolerance), (P99_TTFT, ttft_tolerance)):
                ratio = {"ratio to online only": metric.ratio(bench, found.measured)}
                of_metric = _cells(bench, metric, own, found.text, found.measured)
                names = {"setting": setting.name, "line": metric.label}
                cells = {**names, **of_metric, "bounded by": bounding.label}
                points.append(Point("", setting.name, metric.label, 100 * tolerance, ratio, cells))
    return shown.result(points, f"hygen under two SLOs at once. {lab.where(settings)}.", 3.2)


def _cells(bench: Bench, metric: Metric, tolerance: float, budget: str, measured: Measured) -> Row:
    """``tolerance``: of the metric; a broken SLO is said so."""
    slo_ms = (1 + tolerance) * bench.online_only.latency_ms(metric.name)
    ratio = metric.ratio(bench, measured)
    return {
        "SLO": f"{1 + tolerance:.2f}x = {slo_ms:.1f} ms",
        "budget ms": budget,
        "reached": f"{ratio:.3f}x" + (" BROKEN" if ratio > 1 + tolerance else ""),
        "offline tokens/s": f"{measured.offline_tokens_per_s:,.0f}",
    }
