"""Figure 12: a trace with long prompts (Mooncake) and Mistral-7B."""

from __future__ import annotations

from benchmarks.harness.charts import legend_above, panels
from benchmarks.harness.page import Result, Table
from benchmarks.hygen.bench import HYGEN, STAR
from benchmarks.hygen.lab import Lab, rates
from benchmarks.hygen.settings import METRICS, MISTRAL
from benchmarks.hygen.sweep import (
    draw_ratios,
    draw_throughputs,
    of_metric,
    ratio_cell,
    rows_by_metric,
    slo_columns,
    sweep,
    throughput_cell,
)


def make(lab: Lab) -> Result:
    tolerances = lab.inputs.tolerances
    bench = lab.bench(MISTRAL)
    points = sweep(bench, tolerances)
    figure, axes = panels(2, len(METRICS), 4.4)
    for column, metric in enumerate(METRICS):
        of_this = of_metric(points, metric)
        draw_ratios(axes[0][column], bench, of_this, (HYGEN, STAR))
        draw_throughputs(axes[1][column], bench, of_this)
        axes[0][column].set_title(metric.label)
    axes[0][0].set_ylabel("ratio to online only")
    axes[1][0].set_ylabel("offline tokens/s")
    figure.supxlabel("tolerated interference (%)", fontsize=9)
    handles, labels = axes[0][0].get_legend_handles_labels()
    more = axes[1][0].get_legend_handles_labels()
    legend_above(figure, handles + more[0][:1], labels + more[1][:1])
    columns = slo_columns(tolerances)
    where = f"{rates([bench])}; {lab.window}"
    return Result(
        "fig12",
        [
            Table(
                f"Latency over online-only, and hygen's latency budget in brackets. {where}.",
                ["metric", *columns],
                rows_by_metric(points, ratio_cell(bench)),
            ),
            Table(
                "Offline tokens/s of hygen / hygen-star, and their ratio.",
                ["metric", *columns],
                rows_by_metric(points, throughput_cell),
            ),
        ],
        figure,
    )
