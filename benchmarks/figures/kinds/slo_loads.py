"""Offline throughput as something grows: the online load, a step's chunk, the latency budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.figures.kinds.curves import Curves, Point
from benchmarks.figures.metrics import Metric
from benchmarks.figures.trace_lab import Setting, TraceLab
from benchmarks.harness.charts import BLUE, GREY, ORANGE, PINK
from benchmarks.harness.page import Result
from benchmarks.harness.table import Columns
from benchmarks.lab.lab import HYGEN, SARATHI, STAR, num_kv_blocks
from benchmarks.lab.outcome import Measured

ALONE, NO_SLO, OURS, THEIRS = "online only", "sarathi++ (no SLO)", "hygen", "hygen-star"
OFFLINE, TOTAL, GAIN = "offline tokens/s", "online and offline tokens/s", "hygen over hygen-star"


@dataclass(frozen=True, slots=True)
class Served:
    """One system's run under an SLO. ``knob``: what holds offline work back; ``ratio``: of the SLO's metric to online
    only; ``gain``: over HyGen*'s offline throughput, not a number where it has none."""

    measured: Measured
    knob: str
    ratio: float
    gain: float

    @property
    def gain_cell(self) -> str:
        return "" if self.gain != self.gain else f"{self.gain:.2f}x"


COLUMNS: Columns[Point[Served]] = {
    "system": lambda point: point.series,
    "knob": lambda point: point.value.knob,
    "of online only": lambda point: f"{point.value.ratio:.3f}x",
    "online tokens/s": lambda point: f"{point.value.measured.online_tokens_per_s:,.0f}",
    "offline tokens/s": lambda point: f"{point.value.measured.offline_tokens_per_s:,.0f}",
    "over hygen-star": lambda point: point.value.gain_cell,
}


def served(lab: TraceLab, setting: Setting, metric: Metric, tolerance: float) -> dict[str, Served]:
    """By each system, under an SLO on the metric."""
    bench = lab.bench(setting)
    hygen, star = (bench.largest(system, [metric.slo(tolerance)]) for system in (HYGEN, STAR))
    theirs = star.measured.offline_tokens_per_s or float("nan")
    runs = {
        ALONE: (bench.online_only, ""),
        NO_SLO: (bench.run(SARATHI), ""),
        THEIRS: (star.measured, star.text_with_unit),
        OURS: (hygen.measured, hygen.text_with_unit),
    }
    return {
        name: Served(measured, knob, metric.ratio(bench, measured), measured.offline_tokens_per_s / theirs)
        for name, (measured, knob) in runs.items()
    }


def online_rates(lab: TraceLab, setting: Setting, rates: Sequence[float], metric: Metric, tolerance: float) -> Result:
    """Growing online rates under one SLO (HyGen figure 15)."""
    shown: Curves[Served] = Curves(
        xlabel="online requests/s",
        styles={OURS: ("o-", BLUE), THEIRS: ("s-", PINK), NO_SLO: ("^-", ORANGE), ALONE: ("x-", GREY)},
        quantities={
            OFFLINE: lambda each: each.measured.offline_tokens_per_s,
            TOTAL: lambda each: each.measured.total_tokens_per_s,
        },
    )
    points = [
        Point("", "", name, qps, each)
        for qps in rates
        for name, each in served(lab, replace(setting, qps=qps), metric, tolerance).items()
    ]
    caption = f"SLO {metric.slo(tolerance)}. {lab.where([setting])}, and other rates."
    return shown.result(points, caption, {"requests/s": lambda point: f"{point.x:g}", **COLUMNS}, 3.2)


def chunk_sizes(
    lab: TraceLab, setting: Setting, chunks: Sequence[int], metrics: Sequence[Metric], tolerance: float
) -> Result:
    """What HyGen gains over HyGen* when a step's chunk is smaller or larger; not in the paper."""
    shown: Curves[Served] = Curves(
        xlabel="tokens of one step at most",
        styles=dict(zip((metric.label for metric in metrics), (("o-", BLUE), ("s-", ORANGE)), strict=True)),
        quantities={GAIN: lambda each: each.gain},
        ticks=chunks,
    )
    points = []
    for chunk in chunks:
        of_chunk = replace(setting, machine=replace(setting.machine, max_num_batched_tokens=chunk))
        for metric in metrics:
            ours = served(lab, of_chunk, metric, tolerance)[OURS]
            points.append(Point("", setting.name, metric.label, chunk, ours))
    columns = {"chunk": lambda point: f"{point.x:g}", **COLUMNS, "system": lambda point: f"hygen, {point.series}"}
    return shown.result(points, f"By chunk size, SLOs of {1 + tolerance:g}x. {lab.where([setting])}.", columns, 3.0)


def budgets(lab: TraceLab, setting: Setting, budgets_ms: Sequence[float], times_the_cache: int) -> Result:
    """Throughput by latency budget, and what the KV cache does to it; not in the paper."""
    num_blocks = num_kv_blocks(setting.machine)
    roomy = replace(setting, machine=replace(setting.machine, kv_blocks=num_blocks * times_the_cache))
    caches = {"what the GPU has room for": lab.bench(setting), f"{times_the_cache} times as much": lab.bench(roomy)}
    shown = Curves(
        xlabel="latency budget (ms)",
        styles=dict(zip(caches, (("o-", BLUE), ("s-", ORANGE)), strict=True)),
        quantities={OFFLINE: lambda run: run.offline_tokens_per_s},
    )
    points = [
        Point("", setting.name, label, budget_ms, bench.run(HYGEN, budget_ms))
        for label, bench in caches.items()
        for budget_ms in budgets_ms
    ]
    columns = {
        "KV cache": lambda point: point.series,
        "budget ms": lambda point: f"{point.x:g}",
        "offline tokens/s": lambda point: f"{point.value.offline_tokens_per_s:,.0f}",
        "preemptions": lambda point: str(point.value.totals.preemptions),
    }
    return shown.result(points, f"hygen at fixed budgets. {lab.where([setting])}.", columns, 3.0)
