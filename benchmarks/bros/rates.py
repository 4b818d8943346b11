"""Figures 10 and 11: latency, SLO attainment and offline throughput against the online rate."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.bros.bench import DATASETS, SLO, SYSTEMS, Bench, Measured
from benchmarks.bros.workload import WAVE_SIZE, Dataset
from benchmarks.harness.charts import BLUE, GREEN, GREY, ORANGE, legend_above, panels
from benchmarks.harness.page import Result, Table

COLOURS = dict(zip(SYSTEMS, (BLUE, GREEN, ORANGE, GREY), strict=True))
CURVES: tuple[tuple[str, Callable[[Measured], float]], ...] = (
    ("normalized latency (ms)", lambda measured: measured.normalized_latency_ms),
    ("TTFT attainment (%)", lambda measured: 100 * measured.ttft_attainment),
    ("TPOT attainment (%)", lambda measured: 100 * measured.tpot_attainment),
    ("offline requests/s", lambda measured: measured.offline_requests_per_s),
)
HEADER = (
    "dataset",
    "requests/s",
    "system",
    "normalized latency ms",
    "TTFT p99 ms",
    "TTFT attained",
    "TPOT attained",
    "offline requests/s",
    "preemptions",
)


def make(bench: Bench) -> Result:
    figure, axes = panels(len(DATASETS), len(CURVES), 4.2)
    rows = []
    for dataset, row_of_panels in zip(DATASETS, axes, strict=True):
        rows += [_row(bench, dataset, rate, system) for rate in bench.inputs.rates for system in SYSTEMS]
        for (label, value), panel in zip(CURVES, row_of_panels, strict=True):
            for system in reversed(SYSTEMS):  # the first is seen where lines meet
                values = [value(bench.run(system, dataset, rate)) for rate in bench.inputs.rates]
                panel.plot(bench.inputs.rates, values, "o-", color=COLOURS[system], label=system)
            panel.set_title(label)
            panel.set_ylim(0, 1.05 * panel.get_ylim()[1])
        row_of_panels[0].set_ylabel(dataset.name)
    figure.supxlabel("online requests/s", fontsize=9)
    legend_above(figure, *axes[0][0].get_legend_handles_labels())
    caption = (
        f"{bench.inputs.setting}; SLOs: TTFT {SLO.ttft_ms:g} ms, mean TPOT of a request {SLO.tpot_ms:g} ms; offline "
        f"requests {WAVE_SIZE} at a time; hygen's latency budget is {bench.inputs.budget_ms:g} ms."
    )
    return Result("rates", [Table(caption, HEADER, rows)], figure)


def _row(bench: Bench, dataset: Dataset, rate: float, system: str) -> list[str]:
    measured = bench.run(system, dataset, rate)
    return [
        dataset.name,
        f"{rate:g}",
        system,
        f"{measured.normalized_latency_ms:.1f}",
        f"{measured.ttft_p99_ms:,.0f}",
        f"{measured.ttft_attainment:.1%}",
        f"{measured.tpot_attainment:.1%}",
        f"{measured.offline_requests_per_s:.2f}",
        str(measured.preemptions),
    ]
