"""Figure 11: two SLOs at once, one fixed on p99 TTFT and a growing one on mean TBT."""

from __future__ import annotations

from benchmarks.harness.charts import BLUE, GREEN, GREY, ORANGE, legend_above, panels, percent
from benchmarks.harness.page import Result, Table
from benchmarks.hygen.bench import HYGEN
from benchmarks.hygen.lab import Lab, rates
from benchmarks.hygen.settings import LLAMA, MEAN_TBT, P99_TTFT, QWEN

TTFT_TOLERANCE = 0.08
TBT_TOLERANCES = (0.1, 0.2, 0.3, 0.4, 0.5)
HEADER = (
    "setting",
    "mean TBT SLO",
    "p99 TTFT SLO",
    "budget ms",
    "mean TBT",
    "p99 TTFT",
    "bounded by",
    "offline tokens/s",
)


def make(lab: Lab) -> Result:
    benches = [lab.bench(LLAMA), lab.bench(QWEN)]
    figure, axes = panels(1, len(benches), 3.2)
    rows = []
    for bench, panel in zip(benches, axes[0], strict=True):
        reached = []
        for tolerance in TBT_TOLERANCES:
            found = bench.largest(HYGEN, [MEAN_TBT.slo(tolerance), P99_TTFT.slo(TTFT_TOLERANCE)])
            alone = bench.largest(HYGEN, [MEAN_TBT.slo(tolerance)])
            tbt, ttft = (
                found.measured.latency_ms(metric) / bench.online_only.latency_ms(metric)
                for metric in (MEAN_TBT, P99_TTFT)
            )
            reached.append((tbt, ttft))
            row = [bench.setting.name, f"{1 + tolerance:.2f}x", f"{1 + TTFT_TOLERANCE:.2f}x", found.text]
            bounded_by = MEAN_TBT.label if found.value == alone.value else P99_TTFT.label
            row += [f"{tbt:.3f}x", f"{ttft:.3f}x", bounded_by, f"{found.measured.offline_tokens_per_s:,.0f}"]
            rows.append(row)
        x = percent(TBT_TOLERANCES)
        panel.plot(x, [1 + tolerance for tolerance in TBT_TOLERANCES], "--", color=GREY, label="mean TBT SLO")
        panel.axhline(1 + TTFT_TOLERANCE, linestyle=":", color=GREEN, label="p99 TTFT SLO")
        panel.plot(x, [tbt for tbt, _ in reached], "o-", color=BLUE, label="mean TBT")
        panel.plot(x, [ttft for _, ttft in reached], "s-", color=ORANGE, label="p99 TTFT")
        panel.set_title(bench.setting.name)
        panel.set_xlabel("tolerated mean TBT interference (%)")
    axes[0][0].set_ylabel("ratio to online only")
    legend_above(figure, *axes[0][0].get_legend_handles_labels())
    caption = f"hygen under two SLOs at once. {rates(benches)}; {lab.window}."
    return Result("fig11", [Table(caption, HEADER, rows)], figure)
