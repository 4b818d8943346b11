"""Not in the paper: what HyGen gains over HyGen* when a step's chunk is smaller or larger."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.harness.charts import BLUE, ORANGE, from_zero, legend_above, panels
from benchmarks.harness.page import Result, Table
from benchmarks.hygen.bench import HYGEN, STAR
from benchmarks.hygen.lab import Lab, rates
from benchmarks.hygen.settings import LLAMA, MEAN_TBT, P99_TBT

CHUNKS = (128, 256, 512, 1024, 2048)
TOLERANCE = 0.05
HEADER = ("chunk", "SLO", "hygen: offline tokens/s", "hygen-star", "gain")


def make(lab: Lab) -> Result:
    rows = []
    gains: dict[str, list[float]] = {MEAN_TBT.label: [], P99_TBT.label: []}
    for chunk in CHUNKS:
        bench = lab.bench(replace(LLAMA, machine=replace(LLAMA.machine, max_num_batched_tokens=chunk)))
        for metric in (MEAN_TBT, P99_TBT):
            slo = metric.slo(TOLERANCE)
            ours, theirs = (bench.largest(system, [slo]).measured.offline_tokens_per_s for system in (HYGEN, STAR))
            gains[metric.label].append(ours / theirs if theirs > 0 else float("nan"))
            gain = f"{ours / theirs:.2f}x" if theirs > 0 else ""
            rows.append([str(chunk), slo, f"{ours:,.0f}", f"{theirs:,.0f}", gain])
    figure, axes = panels(1, 1, 3.0)
    panel = axes[0][0]
    for (label, values), style, colour in zip(gains.items(), ("o-", "s-"), (BLUE, ORANGE), strict=True):
        panel.plot(CHUNKS, values, style, color=colour, label=label)
    panel.set_xscale("log", base=2)
    panel.set_xticks(CHUNKS, [str(chunk) for chunk in CHUNKS])
    from_zero(panel)
    panel.set_xlabel("tokens of one step at most")
    panel.set_ylabel("hygen over hygen-star")
    legend_above(figure, *panel.get_legend_handles_labels())
    caption = f"Offline throughput by chunk size. {rates([lab.bench(LLAMA)])}; {lab.window}."
    return Result("chunks", [Table(caption, HEADER, rows)], figure)
