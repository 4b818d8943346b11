"""Figure 7: the profiled budget against the naive one, the mean TBT SLO itself."""

from __future__ import annotations

from benchmarks.harness.charts import BLUE, GREY, RED, legend_above, panels, percent
from benchmarks.harness.page import Result, Table
from benchmarks.hygen.bench import HYGEN, Bench
from benchmarks.hygen.lab import Lab, rates
from benchmarks.hygen.settings import LLAMA, MEAN_TBT, QWEN

HEADER = (
    "setting",
    "SLO",
    "SLO ms",
    "naive: budget ms",
    "mean TBT",
    "offline tokens/s",
    "profiled: budget ms",
    "mean TBT",
    "offline tokens/s",
)


def make(lab: Lab) -> Result:
    benches = [lab.bench(LLAMA), lab.bench(QWEN)]
    figure, axes = panels(1, len(benches), 3.2)
    rows = []
    for bench, panel in zip(benches, axes[0], strict=True):
        tolerances = lab.inputs.tolerances
        base_ms = bench.online_only.latency_ms(MEAN_TBT)
        naive, profiled = [], []
        for tolerance in tolerances:
            row, naive_ms, profiled_ms = _compare(bench, tolerance)
            rows.append(row)
            naive.append(naive_ms / base_ms)
            profiled.append(profiled_ms / base_ms)
        panel.plot(percent(tolerances), [1 + tolerance for tolerance in tolerances], "--", color=GREY, label="SLO")
        panel.plot(percent(tolerances), naive, "v-", color=RED, label="budget = the SLO")
        panel.plot(percent(tolerances), profiled, "o-", color=BLUE, label="budget of the profiler")
        panel.set_title(bench.setting.name)
        panel.set_xlabel("tolerated mean TBT interference (%)")
    axes[0][0].set_ylabel("mean TBT, ratio to online only")
    legend_above(figure, *axes[0][0].get_legend_handles_labels())
    caption = f"A latency budget equal to the mean TBT SLO, and the profiler's. {rates(benches)}; {lab.window}."
    return Result("fig7", [Table(caption, HEADER, rows)], figure)


def _compare(bench: Bench, tolerance: float) -> tuple[list[str], float, float]:
    """The row, and the mean TBT of both budgets in milliseconds."""
    base_ms = bench.online_only.latency_ms(MEAN_TBT)
    slo_ms = (1 + tolerance) * base_ms
    naive, found = bench.run(HYGEN, slo_ms), bench.largest(HYGEN, [MEAN_TBT.slo(tolerance)])
    naive_ms, found_ms = naive.latency_ms(MEAN_TBT), found.measured.latency_ms(MEAN_TBT)
    broken = " BROKEN" if naive_ms > slo_ms else ""
    row = [
        bench.setting.name,
        f"{1 + tolerance:.2f}x",
        f"{slo_ms:.1f}",
        f"{slo_ms:.1f}",
        f"{naive_ms / base_ms:.3f}x{broken}",
        f"{naive.offline_tokens_per_s:,.0f}",
        found.text,
        f"{found_ms / base_ms:.3f}x",
        f"{found.measured.offline_tokens_per_s:,.0f}",
    ]
    return row, naive_ms, found_ms
