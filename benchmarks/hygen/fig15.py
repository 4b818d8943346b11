"""Figure 15: offline throughput as the online rate grows, at 5% p99 TBT interference."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.harness.charts import BLUE, GREY, ORANGE, PINK, from_zero, legend_above, panels
from benchmarks.harness.page import Result, Table
from benchmarks.hygen.bench import HYGEN, SARATHI, STAR, Bench
from benchmarks.hygen.lab import Lab
from benchmarks.hygen.settings import LLAMA, P99_TBT

TOLERANCE = 0.05
RATES = (0.25, 0.5, 1.0, 1.5, 2.0, 2.5)  # requests/s; the machine's capacity is a little under 3
HEADER = (
    "online requests/s",
    "online tokens/s",
    "p99 TBT online only, ms",
    "hygen: budget ms",
    "p99 TBT",
    "offline tokens/s",
    "hygen-star: offline requests/s",
    "p99 TBT",
    "offline tokens/s",
    "hygen over hygen-star",
    "sarathi++: p99 TBT",
    "offline tokens/s",
)


def make(lab: Lab) -> Result:
    benches = [lab.bench(replace(LLAMA, qps=qps)) for qps in RATES]
    rows = [_row(bench) for bench in benches]
    slos = [P99_TBT.slo(TOLERANCE)]
    figure, axes = panels(1, 2, 3.2)
    offline, total = axes[0]
    for panel, figure_of in ((offline, "offline_tokens_per_s"), (total, "total_tokens_per_s")):
        lines = {
            "sarathi++ (no SLO)": ("^-", ORANGE, [bench.run(SARATHI) for bench in benches]),
            "hygen": ("o-", BLUE, [bench.largest(HYGEN, slos).measured for bench in benches]),
            "hygen-star": ("s-", PINK, [bench.largest(STAR, slos).measured for bench in benches]),
            "online only": ("x-", GREY, [bench.online_only for bench in benches]),
        }
        for label, (style, colour, runs) in lines.items():
            panel.plot(RATES, [getattr(run, figure_of) for run in runs], style, color=colour, label=label)
        panel.set_xlabel("online requests/s")
        from_zero(panel)
    offline.set_ylabel("offline tokens/s")
    total.set_ylabel("online and offline tokens/s")
    legend_above(figure, *total.get_legend_handles_labels())
    caption = f"{LLAMA.name}, SLO {slos[0]}; {lab.window}."
    return Result("fig15", [Table(caption, HEADER, rows)], figure)


def _row(bench: Bench) -> list[str]:
    slos = [P99_TBT.slo(TOLERANCE)]
    base_ms = bench.online_only.latency_ms(P99_TBT)
    cells = [f"{bench.setting.qps:g}", f"{bench.online_only.online_tokens_per_s:,.0f}", f"{base_ms:.1f}"]
    hygen, star = bench.largest(HYGEN, slos), bench.largest(STAR, slos)
    for found in (hygen, star):
        reached = found.measured.latency_ms(P99_TBT) / base_ms
        cells += [found.text, f"{reached:.3f}x", f"{found.measured.offline_tokens_per_s:,.0f}"]
    theirs = star.measured.offline_tokens_per_s
    cells.append(f"{hygen.measured.offline_tokens_per_s / theirs:.2f}x" if theirs > 0 else "")
    sarathi = bench.run(SARATHI)
    return [*cells, f"{sarathi.latency_ms(P99_TBT) / base_ms:.2f}x", f"{sarathi.offline_tokens_per_s:,.0f}"]
