"""Not in the paper: offline throughput by latency budget, and what the KV cache does to it."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.harness.charts import BLUE, ORANGE, from_zero, legend_above, panels
from benchmarks.harness.page import Result, Table
from benchmarks.hygen.bench import HYGEN, Bench, Measured
from benchmarks.hygen.lab import Lab, rates
from benchmarks.hygen.settings import LLAMA
from services.profiler.slo.outcome import TrialOutcome

BUDGETS_MS = (14.0, 17.0, 20.0, 25.0, 30.0, 40.0, 60.0)
TIMES_THE_CACHE = 4
HEADER = ("KV cache", "budget ms", "offline tokens/s", "preemptions")


def make(lab: Lab) -> Result:
    bench = lab.bench(LLAMA)
    num_blocks = bench.phase(HYGEN, BUDGETS_MS[0]).executor.replica.pool.num_blocks
    roomy = lab.bench(replace(LLAMA, machine=replace(LLAMA.machine, kv_blocks=num_blocks * TIMES_THE_CACHE)))
    figure, axes = panels(1, 1, 3.0)
    panel = axes[0][0]
    rows = []
    for each, label, style, colour in (
        (bench, "what the GPU has room for", "o-", BLUE),
        (roomy, f"{TIMES_THE_CACHE} times as much", "s-", ORANGE),
    ):
        throughputs = []
        for budget_ms in BUDGETS_MS:
            tokens_per_s, cells = _run(each, budget_ms)
            throughputs.append(tokens_per_s)
            rows.append([label, f"{budget_ms:g}", *cells])
        panel.plot(BUDGETS_MS, throughputs, style, color=colour, label=label)
    from_zero(panel)
    panel.set_xlabel("latency budget (ms)")
    panel.set_ylabel("offline tokens/s")
    legend_above(figure, *panel.get_legend_handles_labels())
    caption = f"hygen at fixed budgets. {rates([bench])}; {lab.window}."
    return Result("budgets", [Table(caption, HEADER, rows)], figure)


def _run(bench: Bench, budget_ms: float) -> tuple[float, list[str]]:
    """Throughput, and the row's last cells."""
    phase = bench.phase(HYGEN, budget_ms)
    phase.run()
    tokens_per_s = Measured(TrialOutcome.of(phase.outcome())).offline_tokens_per_s
    return tokens_per_s, [f"{tokens_per_s:,.0f}", str(phase.executor.replica.totals.preemptions)]
