"""Figure 4: offline throughput under each SLO."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness.charts import legend_above, panels
from benchmarks.harness.page import Result, Table
from benchmarks.hygen.bench import SARATHI, Bench
from benchmarks.hygen.lab import Lab, rates
from benchmarks.hygen.settings import LLAMA, METRICS, QWEN
from benchmarks.hygen.sweep import (
    Point,
    draw_throughputs,
    of_metric,
    rows_by_metric,
    slo_columns,
    sweep,
    throughput_cell,
)

SUMMARY = (
    "setting",
    "online only, total",
    "sarathi++, offline",
    "sarathi++, total",
    "hygen, best total",
    "over online only",
    "hygen over hygen-star, mean",
    "most",
)


def make(lab: Lab) -> Result:
    tolerances = lab.inputs.tolerances
    benches = [lab.bench(LLAMA), lab.bench(QWEN)]
    figure, axes = panels(len(benches), len(METRICS), 4.6)
    rows, totals = [], []
    for bench, panels_of_bench in zip(benches, axes, strict=True):
        points = sweep(bench, tolerances)
        for metric, panel in zip(METRICS, panels_of_bench, strict=True):
            draw_throughputs(panel, bench, of_metric(points, metric))
        panels_of_bench[0].set_ylabel(f"{bench.setting.name}\noffline tokens/s")
        rows += [[bench.setting.name, *row] for row in rows_by_metric(points, throughput_cell)]
        totals.append(_summary(bench, points))
    for metric, panel in zip(METRICS, axes[0], strict=True):
        panel.set_title(metric.label)
    figure.supxlabel("tolerated interference (%)", fontsize=9)
    legend_above(figure, *axes[0][0].get_legend_handles_labels())
    caption = f"Offline tokens/s of hygen / hygen-star, and their ratio. {rates(benches)}; {lab.window}."
    by_slo = Table(caption, ["setting", "metric", *slo_columns(tolerances)], rows)
    return Result("fig4", [by_slo, Table("Tokens/s, prompt and output together.", SUMMARY, totals)], figure)


def _summary(bench: Bench, points: Sequence[Point]) -> list[str]:
    alone, sarathi = bench.online_only.total_tokens_per_s, bench.run(SARATHI)
    best = max(point.hygen.measured.total_tokens_per_s for point in points)
    gains = [point.gain for point in points if point.gain is not None]
    return [
        bench.setting.name,
        f"{alone:,.0f}",
        f"{sarathi.offline_tokens_per_s:,.0f}",
        f"{sarathi.total_tokens_per_s:,.0f}",
        f"{best:,.0f}",
        f"{best / alone:.2f}x",
        f"{sum(gains) / len(gains):.2f}x" if gains else "",
        f"{max(gains):.2f}x" if gains else "",
    ]
