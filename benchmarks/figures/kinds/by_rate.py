"""Systems side by side as the online rate grows: latency, attainment and what offline work gets."""

from collections.abc import Callable, Mapping, Sequence

from benchmarks.figures.rate_lab import RateLab, Scene
from benchmarks.harness.charts import Curves, Point
from benchmarks.harness.command import Row, formatted
from benchmarks.harness.page import Result
from benchmarks.lab.lab import System
from benchmarks.lab.outcome import Run

LATENCY, TTFT_SHARE, TPOT_SHARE = "normalized latency (ms)", "TTFT attainment (%)", "TPOT attainment (%)"
OFFLINE, TTFT_P99 = "offline requests/s", "TTFT p99 (ms)"
QUANTITIES: dict[str, Callable[[Run], float]] = {
    LATENCY: lambda run: run.normalized_latency_ms,
    TTFT_SHARE: lambda run: 100 * run.attained["ttft"],
    TPOT_SHARE: lambda run: 100 * run.attained["tpot"],
    OFFLINE: lambda run: run.offline_requests_per_s,
    TTFT_P99: lambda run: run.latency_or_zero_ms("ttft_p99"),
}


def by_rate(
    lab: RateLab,
    scene: Scene,
    systems: Mapping[str, System],
    colours: Sequence[str],
    quantities: Sequence[str],
    caption: str,
    with_kv: bool = False,
) -> Result:
    """``systems``: by the names of their lines, in the order of ``colours``; ``quantities``: names in ``QUANTITIES``;
    ``with_kv``: what became of KV is in the table."""
    budget_ms = lab.options.budget_ms
    points = []
    for dataset in scene.datasets:
        for rate in lab.rates(scene):
            for name, system in systems.items():
                run = lab.bench(scene, dataset, rate).run(system, system.budget(budget_ms))
                values = {quantity: QUANTITIES[quantity](run) for quantity in quantities}
                where = {"dataset": dataset.name, "requests/s": f"{rate:g}", "system": name}
                cells = {**where, **_cells(run), **(_kv_cells(run) if with_kv else {})}
                points.append(Point(dataset.name, "", name, rate, values, cells))
    described = f"{caption} {lab.where(scene)}; hygen's latency budget is {budget_ms:g} ms."
    styles = {name: ("o-", colour) for name, colour in zip(systems, colours, strict=True)}
    return Curves("online requests/s", styles).result(points, described, 1.8 + 1.2 * len(scene.datasets))


def _cells(run: Run) -> Row:
    return {
        "normalized latency ms": f"{run.normalized_latency_ms:.1f}",
        "TTFT p99 ms": f"{run.latency_or_zero_ms('ttft_p99'):,.0f}",
        **formatted(".1%", {"TTFT attained": run.attained["ttft"], "TPOT attained": run.attained["tpot"]}),
        "offline requests/s": f"{run.offline_requests_per_s:.2f}",
        "preemptions": str(run.totals.preemptions),
    }


def _kv_cells(run: Run) -> Row:
    totals = run.totals
    return {
        "TBT p99 ms": f"{run.latency_or_zero_ms('tbt_p99'):.0f}",
        "offline tokens/s": f"{totals.offline_tokens / run.end_s:.0f}",
        **formatted(",", {"prompt tokens computed": totals.prompt_tokens, "found in the cache": totals.cached_tokens}),
        "pauses": str(totals.pauses),
        **formatted(",", {"slots to the host": totals.checkpointed_slots, "and back": totals.restored_slots}),
    }
