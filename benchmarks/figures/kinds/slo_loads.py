"""Offline throughput as something grows: the online load, a step's chunk, the latency budget."""

import math
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.figures.kinds.curves import Curves, Point
from benchmarks.figures.metrics import NO_SLO, OURS, THEIRS, Kept, Metric
from benchmarks.figures.trace_lab import Setting, TraceLab
from benchmarks.harness.charts import BLUE, GREY, ORANGE, PINK
from benchmarks.harness.page import Result
from benchmarks.harness.table import Row
from benchmarks.lab.lab import HYGEN, num_kv_blocks
from benchmarks.lab.outcome import Measured

ALONE, OFFLINE = "online only", "offline tokens/s"


def online_rates(lab: TraceLab, setting: Setting, rates: Sequence[float], metric: Metric, tolerance: float) -> Result:
    """Growing online rates under one SLO (HyGen figure 15)."""
    styles = {OURS: ("o-", BLUE), THEIRS: ("s-", PINK), NO_SLO: ("^-", ORANGE), ALONE: ("x-", GREY)}
    points = []
    for qps in rates:
        kept = Kept.of(lab.bench(replace(setting, qps=qps)), metric, tolerance)
        knobs = {THEIRS: kept.star.text_with_unit, OURS: kept.hygen.text_with_unit}
        for name, measured in {ALONE: kept.bench.online_only, **kept.runs}.items():
            values = {
                OFFLINE: measured.offline_tokens_per_s,
                "online and offline tokens/s": measured.total_tokens_per_s,
            }
            cells = {"requests/s": f"{qps:g}", "system": name, **_cells(kept, measured, knobs.get(name, ""))}
            points.append(Point("", "", name, qps, values, cells))
    caption = f"SLO {metric.slo(tolerance)}. {lab.where([setting])}, and other rates."
    return Curves("online requests/s", styles).result(points, caption, 3.2)


def chunk_sizes(
    lab: TraceLab, setting: Setting, chunks: Sequence[int], metrics: Sequence[Metric], tolerance: float
) -> Result:
    """What HyGen gains over HyGen* when a step's chunk is smaller or larger; not in the paper."""
    styles = dict(zip((metric.label for metric in metrics), (("o-", BLUE), ("s-", ORANGE)), strict=True))
    points = []
    for chunk in chunks:
        bench = lab.bench(replace(setting, machine=replace(setting.machine, max_num_batched_tokens=chunk)))
        for metric in metrics:
            kept = Kept.of(bench, metric, tolerance)
            measured = kept.hygen.measured
            of_hygen = _cells(kept, measured, kept.hygen.text_with_unit)
            cells = {"chunk": f"{chunk:g}", "system": f"hygen, {metric.label}", **of_hygen}
            gain = {"hygen over hygen-star": kept.gain(measured)}
            points.append(Point("", setting.name, metric.label, chunk, gain, cells))
    caption = f"By chunk size, SLOs of {1 + tolerance:g}x. {lab.where([setting])}."
    return Curves("tokens of one step at most", styles, ticks=chunks).result(points, caption, 3.0)


def _cells(kept: Kept, measured: Measured, knob: str) -> Row:
    """``knob``: what holds offline work back."""
    gain = kept.gain(measured)
    return {
        "knob": knob,
        "of online only": f"{kept.ratio(measured):.3f}x",
        "online tokens/s": f"{measured.online_tokens_per_s:,.0f}",
        "offline tokens/s": f"{measured.offline_tokens_per_s:,.0f}",
        "over hygen-star": "" if math.isnan(gain) else f"{gain:.2f}x",
    }


def budgets(lab: TraceLab, setting: Setting, budgets_ms: Sequence[float], times_the_cache: int) -> Result:
    """Throughput by latency budget, and what the KV cache does to it; not in the paper."""
    num_blocks = num_kv_blocks(setting.machine)
    roomy = replace(setting, machine=replace(setting.machine, kv_blocks=num_blocks * times_the_cache))
    caches = {"what the GPU has room for": lab.bench(setting), f"{times_the_cache} times as much": lab.bench(roomy)}
    points = []
    for label, bench in caches.items():
        for budget_ms in budgets_ms:
            run = bench.run(HYGEN, budget_ms)
            cells = {
                "KV cache": label,
                "budget ms": f"{budget_ms:g}",
                "offline tokens/s": f"{run.offline_tokens_per_s:,.0f}",
                "preemptions": str(run.totals.preemptions),
            }
            points.append(Point("", setting.name, label, budget_ms, {OFFLINE: run.offline_tokens_per_s}, cells))
    shown = Curves("latency budget (ms)", dict(zip(caches, (("o-", BLUE), ("s-", ORANGE)), strict=True)))
    return shown.result(points, f"hygen at fixed budgets. {lab.where([setting])}.", 3.0)
