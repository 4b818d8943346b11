"""Figure 3: the interference that HyGen lets through, against what the SLO tolerates."""

from __future__ import annotations

from benchmarks.harness.charts import legend_above, panels
from benchmarks.harness.page import Result, Table
from benchmarks.hygen.bench import HYGEN, SARATHI
from benchmarks.hygen.lab import Lab, rates
from benchmarks.hygen.settings import LLAMA, METRICS, QWEN
from benchmarks.hygen.sweep import (
    draw_ratios,
    of_metric,
    ratio_cell,
    rows_by_metric,
    sarathi_ratio,
    slo_columns,
    sweep,
)


def make(lab: Lab) -> Result:
    tolerances = lab.inputs.tolerances
    benches = [lab.bench(LLAMA), lab.bench(QWEN)]
    figure, axes = panels(len(benches), len(METRICS), 4.6)
    rows = []
    for bench, panels_of_bench in zip(benches, axes, strict=True):
        points = sweep(bench, tolerances)
        for metric, panel in zip(METRICS, panels_of_bench, strict=True):
            draw_ratios(panel, bench, of_metric(points, metric), (HYGEN, SARATHI))
        panels_of_bench[0].set_ylabel(f"{bench.setting.name}\nratio to online only")
        for metric, row in zip(METRICS, rows_by_metric(points, ratio_cell(bench)), strict=True):
            base_ms, sarathi = bench.online_only.latency_ms(metric), sarathi_ratio(bench, metric)
            rows.append([bench.setting.name, row[0], f"{base_ms:.1f}", f"{sarathi:.2f}x", *row[1:]])
    for metric, panel in zip(METRICS, axes[0], strict=True):
        panel.set_title(metric.label)
    figure.supxlabel("tolerated interference (%)", fontsize=9)
    legend_above(figure, *axes[0][0].get_legend_handles_labels())
    caption = f"Latency over online-only, and hygen's latency budget in brackets. {rates(benches)}; {lab.window}."
    header = ["setting", "metric", "online only ms", "sarathi++", *slo_columns(tolerances)]
    return Result("fig3", [Table(caption, header, rows)], figure)
