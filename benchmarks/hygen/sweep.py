"""The paper's end-to-end comparison: each metric as the SLO, with several tolerances (section 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from benchmarks.harness.charts import BLUE, GREY, ORANGE, PINK, from_zero, percent
from benchmarks.hygen.bench import HYGEN, SARATHI, STAR, Bench, Found, System
from benchmarks.hygen.settings import METRICS, Metric


@dataclass(frozen=True, slots=True)
class Point:
    """What both systems reach under one SLO."""

    metric: Metric
    tolerance: float
    hygen: Found
    star: Found

    @property
    def gain(self) -> float | None:
        """HyGen's offline throughput over HyGen*'s; None where HyGen* has none."""
        theirs = self.star.measured.offline_tokens_per_s
        return self.hygen.measured.offline_tokens_per_s / theirs if theirs > 0 else None


def sweep(bench: Bench, tolerances: Sequence[float], metrics: Sequence[Metric] = METRICS) -> list[Point]:
    """Metric by metric, in the order of the tolerances."""
    return [
        Point(metric, tolerance, bench.largest(HYGEN, [slo]), bench.largest(STAR, [slo]))
        for metric in metrics
        for tolerance in tolerances
        for slo in [metric.slo(tolerance)]
    ]


def of_metric(points: Sequence[Point], metric: Metric) -> list[Point]:
    return [point for point in points if point.metric is metric]


def rows_by_metric(points: Sequence[Point], cell: Callable[[Point], str]) -> list[list[str]]:
    """A row for each metric, a cell for each tolerance."""
    metrics = dict.fromkeys(point.metric for point in points)
    return [[metric.label, *(cell(point) for point in of_metric(points, metric))] for metric in metrics]


def slo_columns(tolerances: Sequence[float]) -> list[str]:
    return [f"SLO {1 + tolerance:.2f}x" for tolerance in tolerances]


def ratio(bench: Bench, found: Found, metric: Metric) -> float:
    """Its latency over the online-only run's."""
    return found.measured.latency_ms(metric) / bench.online_only.latency_ms(metric)


def sarathi_ratio(bench: Bench, metric: Metric) -> float:
    return bench.run(SARATHI).latency_ms(metric) / bench.online_only.latency_ms(metric)


def draw_ratios(panel: Axes, bench: Bench, points: Sequence[Point], systems: Sequence[System]) -> None:
    """Latency reached against latency tolerated, for one metric."""
    tolerances = [point.tolerance for point in points]
    metric = points[0].metric
    panel.plot(percent(tolerances), [1 + tolerance for tolerance in tolerances], "--", color=GREY, label="SLO")
    if SARATHI in systems:
        panel.axhline(sarathi_ratio(bench, metric), color=ORANGE, label="sarathi++ (no SLO)")
    if STAR in systems:
        reached = [ratio(bench, point.star, metric) for point in points]
        panel.plot(percent(tolerances), reached, "s-", color=PINK, label="hygen-star")
    panel.plot(percent(tolerances), [ratio(bench, p.hygen, metric) for p in points], "o-", color=BLUE, label="hygen")


def draw_throughputs(panel: Axes, bench: Bench, points: Sequence[Point]) -> None:
    """Offline throughput against latency tolerated, for one metric."""
    tolerances = percent([point.tolerance for point in points])
    panel.axhline(bench.run(SARATHI).offline_tokens_per_s, color=ORANGE, label="sarathi++ (no SLO)")
    panel.plot(tolerances, [p.star.measured.offline_tokens_per_s for p in points], "s-", color=PINK, label="hygen-star")
    panel.plot(tolerances, [p.hygen.measured.offline_tokens_per_s for p in points], "o-", color=BLUE, label="hygen")
    from_zero(panel)


def ratio_cell(bench: Bench) -> Callable[[Point], str]:
    """What hygen reached, and the budget that it reached it with; a broken SLO is said so."""

    def cell(point: Point) -> str:
        reached = ratio(bench, point.hygen, point.metric)
        broken = "" if reached <= 1 + point.tolerance else " BROKEN"
        unit = "" if point.hygen.unbounded or point.hygen.value is None else " ms"
        return f"{reached:.3f}x ({point.hygen.text}{unit}){broken}"

    return cell


def throughput_cell(point: Point) -> str:
    """Of hygen and hygen-star, and their ratio."""
    ours, theirs = point.hygen.measured.offline_tokens_per_s, point.star.measured.offline_tokens_per_s
    gain = "" if point.gain is None else f" ({point.gain:.2f}x)"
    return f"{ours:,.0f} / {theirs:,.0f}{gain}"
