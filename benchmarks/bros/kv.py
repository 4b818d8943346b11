"""Figure 13: attainment with and without KV blocks that both kinds share."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.bros import rates
from benchmarks.bros.bench import Bench, Measured
from benchmarks.bros.workload import SHAREGPT
from benchmarks.harness.charts import BLUE, GREY, ORANGE, legend_above, panels
from benchmarks.harness.page import Result, Table
from shared.scheduling.presets import preset_named

COLOURS = {"keep-resident": GREY, "lru": ORANGE, "bidirectional": BLUE}  # the last is seen where lines meet
CURVES = rates.CURVES[1:]  # all but the latency
HEADER = (
    "requests/s",
    "KV policy",
    "normalized latency ms",
    "TTFT p99 ms",
    "TTFT attained",
    "TPOT attained",
    "offline requests/s",
    "preemptions",
    "pauses",
    "slots to the host",
)


def make(bench: Bench) -> Result:
    figure, axes = panels(1, len(CURVES), 3.0)
    rows, measured = [], {}
    for rate in bench.inputs.rates:
        for policy in COLOURS:
            measured[policy, rate], row = _run(bench, policy, rate)
            rows.append([f"{rate:g}", policy, *row])
    for (label, value), panel in zip(CURVES, axes[0], strict=True):
        for policy, colour in COLOURS.items():
            values = [value(measured[policy, rate]) for rate in bench.inputs.rates]
            panel.plot(bench.inputs.rates, values, "o-", color=colour, label=policy)
        panel.set_title(label)
        panel.set_ylim(0, 1.05 * panel.get_ylim()[1])
    figure.supxlabel("online requests/s", fontsize=9)
    legend_above(figure, *axes[0][0].get_legend_handles_labels())
    caption = f"The preset bros with each KV policy. {bench.inputs.setting}; {SHAREGPT.name}."
    return Result("kv", [Table(caption, HEADER, rows)], figure)


def _run(bench: Bench, policy: str, rate: float) -> tuple[Measured, list[str]]:
    """And the row's last cells."""
    phase = bench.phase(replace(preset_named("bros"), kv_policy=policy), SHAREGPT, rate)
    phase.run()
    measured, totals = Measured.of(phase), phase.executor.replica.totals
    cells = [
        f"{measured.normalized_latency_ms:.1f}",
        f"{measured.ttft_p99_ms:,.0f}",
        f"{measured.ttft_attainment:.1%}",
        f"{measured.tpot_attainment:.1%}",
        f"{measured.offline_requests_per_s:.2f}",
        str(totals.preemptions),
        str(totals.pauses),
        f"{totals.checkpointed_slots:,}",
    ]
    return measured, cells
