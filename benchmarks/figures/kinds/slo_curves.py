"""What becomes of an SLO or of offline throughput as something grows: what the SLO tolerates, the online load, a step's
chunk, the latency budget."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchmarks.figures.trace_lab import (
    FITTED,
    MEAN_TBT,
    NO_SLO,
    OURS,
    P99_TTFT,
    THEIRS,
    Kept,
    Metric,
    Setting,
    TraceLab,
)
from benchmarks.harness.charts import Curves, Point, Style
from benchmarks.harness.command import Row, formatted
from benchmarks.harness.page import Result
from benchmarks.lab.lab import Bench, setup_of
from benchmarks.lab.outcome import Measured
from shared.pictures import BLUE, GREY, ORANGE, PINK, RED

NAIVE, PROFILED = "budget = the SLO", "budget of the profiler"
ALONE, OFFLINE = "online only", "offline tokens/s"
TOLERATED = "tolerated mean TBT interference (%)"


def naive_budgets(lab: TraceLab, settings: Sequence[Setting]) -> Result:
    """A budget equal to the SLO on mean TBT, and the profiler's (HyGen figure 7)."""
    styles, points = {PROFILED: ("o-", BLUE), NAIVE: ("v-", RED)}, []
    for setting in settings:
        bench = lab.bench(setting)
        for tolerance in lab.options.tolerances:
            slo_ms = (1 + tolerance) * bench.online_only.latency_ms(MEAN_TBT.name)
            naive, found = bench.run(FITTED, slo_ms), bench.largest(FITTED, [MEAN_TBT.slo(tolerance)])
            for series, budget, measured in ((NAIVE, f"{slo_ms:.1f}", naive), (PROFILED, found.text, found.measured)):
                cells = _under_slo(series, bench, MEAN_TBT, tolerance, budget, measured)
                ratio = {"mean TBT, ratio to online only": MEAN_TBT.ratio(bench, measured)}
                points.append(Point("", bench.name, series, 100 * tolerance, ratio, cells))
    shown = Curves(TOLERATED, styles, bounds={"SLO": lambda x: 1 + x / 100}, from_zero=False)
    caption = f"A latency budget equal to the mean TBT SLO, and the profiler's. {lab.where(settings)}."
    return shown.result(points, caption, 3.2)


def two_slos(lab: TraceLab, settings: Sequence[Setting], tolerances: Sequence[float], ttft_tolerance: float) -> Result:
    """One fixed on p99 TTFT and a growing one on mean TBT (HyGen figure 11)."""
    styles, points = {MEAN_TBT.label: ("o-", BLUE), P99_TTFT.label: ("s-", ORANGE)}, []
    for setting in settings:
        bench = lab.bench(setting)
        for tolerance in tolerances:
            alone = bench.largest(FITTED, [MEAN_TBT.slo(tolerance)])
            found = bench.largest(FITTED, [MEAN_TBT.slo(tolerance), P99_TTFT.slo(ttft_tolerance)])
            bounding = MEAN_TBT if found.value == alone.value else P99_TTFT
            for metric, own in ((MEAN_TBT, tolerance), (P99_TTFT, ttft_tolerance)):
                cells = _under_slo(metric.label, bench, metric, own, found.text, found.measured)
                ratio = {"ratio to online only": metric.ratio(bench, found.measured)}
                bounded = {**cells, "bounded by": bounding.label}
                points.append(Point("", bench.name, metric.label, 100 * tolerance, ratio, bounded))
    bounds = {"mean TBT SLO": lambda x: 1 + x / 100, "p99 TTFT SLO": lambda x: 1 + ttft_tolerance}
    shown = Curves(TOLERATED, styles, bounds=bounds, from_zero=False)
    return shown.result(points, f"hygen under two SLOs at once. {lab.where(settings)}.", 3.2)


def _under_slo(line: str, bench: Bench, metric: Metric, tolerance: float, budget: str, measured: Measured) -> Row:
    """``tolerance``: of the metric; a broken SLO is said so."""
    slo_ms = (1 + tolerance) * bench.online_only.latency_ms(metric.name)
    ratio = metric.ratio(bench, measured)
    return {
        "setting": bench.name,
        "line": line,
        "SLO": f"{1 + tolerance:.2f}x = {slo_ms:.1f} ms",
        "budget ms": budget,
        "reached": f"{ratio:.3f}x" + (" BROKEN" if ratio > 1 + tolerance else ""),
        "offline tokens/s": f"{measured.offline_tokens_per_s:,.0f}",
    }


def online_rates(lab: TraceLab, setting: Setting, rates: Sequence[float], metric: Metric, tolerance: float) -> Result:
    """Growing online rates under one SLO (HyGen figure 15)."""
    styles = {OURS: ("o-", BLUE), THEIRS: ("s-", PINK), NO_SLO: ("^-", ORANGE), ALONE: ("x-", GREY)}
    points = []
    for qps in rates:
        kept = Kept.of(lab.bench(replace(setting, qps=qps)), metric, tolerance)
        knobs = {THEIRS: kept.star.text_with_unit, OURS: kept.hygen.text_with_unit}
        for name, measured in {ALONE: kept.bench.online_only, **kept.runs}.items():
            together = {"online and offline tokens/s": measured.total_tokens_per_s}
            cells = {"requests/s": f"{qps:g}", "system": name, **_throughput(kept, measured, knobs.get(name, ""))}
            points.append(Point("", "", name, qps, {OFFLINE: measured.offline_tokens_per_s, **together}, cells))
    caption = f"SLO {metric.slo(tolerance)}. {lab.where([setting])}, and other rates."
    return Curves("online requests/s", styles).result(points, caption, 3.2)


def rates_by_metric(
    lab: TraceLab, setting: Setting, rates: Sequence[float], metrics: Sequence[Metric], tolerance: float
) -> Result:
    """What hygen reaches under one SLO on each metric as the online rate grows (HyGen figure 10)."""
    points = []
    for qps in rates:
        bench = lab.bench(replace(setting, qps=qps))
        for metric in metrics:
            found = bench.largest(FITTED, [metric.slo(tolerance)])
            cells = {"requests/s": f"{qps:g}"}
            cells |= _under_slo(metric.label, bench, metric, tolerance, found.text, found.measured)
            ratio = {"ratio to online only": metric.ratio(bench, found.measured)}
            points.append(Point("", metric.label, OURS, qps, ratio, cells))
    shown = Curves("online requests/s", {OURS: ("o-", BLUE)}, bounds={"SLO": lambda x: 1 + tolerance}, from_zero=False)
    return shown.result(
        points, f"SLOs of {1 + tolerance:g}x, each alone. {lab.where([setting])}, and other rates.", 2.6
    )


def chunk_sizes(
    lab: TraceLab, setting: Setting, chunks: Sequence[int], metrics: Sequence[Metric], tolerance: float
) -> Result:
    """What HyGen gains over HyGen* when a step's chunk is smaller or larger; not in the paper."""
    points = []
    for chunk in chunks:
        bench = lab.bench(replace(setting, machine=replace(setting.machine, max_num_batched_tokens=chunk)))
        for metric in metrics:
            kept = Kept.of(bench, metric, tolerance)
            measured = kept.hygen.measured
            of_hygen = _throughput(kept, measured, kept.hygen.text_with_unit)
            cells = {"chunk": f"{chunk:g}", "system": f"hygen, {metric.label}", **of_hygen}
            gain = {"hygen over hygen-star": kept.gain(measured)}
            points.append(Point("", setting.name, metric.label, chunk, gain, cells))
    caption = f"By chunk size, SLOs of {1 + tolerance:g}x. {lab.where([setting])}."
    styles = _two(metric.label for metric in metrics)
    return Curves("tokens of one step at most", styles, ticks=chunks).result(points, caption, 3.0)


def _throughput(kept: Kept, measured: Measured, knob: str) -> Row:
    """``knob``: what holds offline work back."""
    gain = kept.gain(measured)
    return {
        "knob": knob,
        "of online only": f"{kept.ratio(measured):.3f}x",
        **formatted(",.0f", {"online tokens/s": measured.online_tokens_per_s, OFFLINE: measured.offline_tokens_per_s}),
        "over hygen-star": "" if math.isnan(gain) else f"{gain:.2f}x",
    }


def budgets(lab: TraceLab, setting: Setting, budgets_ms: Sequence[float], times_the_cache: int) -> Result:
    """Throughput by latency budget, and what the KV cache does to it; not in the paper."""
    num_blocks = setup_of(setting.machine).limits.num_blocks * times_the_cache
    roomy = replace(setting, machine=replace(setting.machine, kv_blocks=num_blocks))
    caches = {"what the GPU has room for": lab.bench(setting), f"{times_the_cache} times as much": lab.bench(roomy)}
    points = []
    for label, bench in caches.items():
        for budget_ms in budgets_ms:
            run = bench.run(FITTED, budget_ms)
            cells = {
                "KV cache": label,
                "budget ms": f"{budget_ms:g}",
                "offline tokens/s": f"{run.offline_tokens_per_s:,.0f}",
                "preemptions": str(run.totals.preemptions),
            }
            points.append(Point("", setting.name, label, budget_ms, {OFFLINE: run.offline_tokens_per_s}, cells))
    shown = Curves("latency budget (ms)", _two(caches))
    return shown.result(points, f"hygen at fixed budgets. {lab.where([setting])}.", 3.0)


def _two(series: Iterable[str]) -> dict[str, Style]:
    return dict(zip(series, (("o-", BLUE), ("s-", ORANGE)), strict=True))
