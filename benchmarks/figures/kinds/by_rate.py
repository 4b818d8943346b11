"""Systems side by side as the online rate grows: latency, attainment and what offline work gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.figures.kinds.curves import Curves, Point, Style
from benchmarks.figures.rate_lab import RateLab, Scene
from benchmarks.harness.page import Result
from benchmarks.harness.table import Columns
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
COLUMNS: Columns[Point[Run]] = {
    "dataset": lambda point: point.row,
    "requests/s": lambda point: f"{point.x:g}",
    "system": lambda point: point.series,
    "normalized latency ms": lambda point: f"{point.value.normalized_latency_ms:.1f}",
    "TTFT p99 ms": lambda point: f"{point.value.latency_or_zero_ms('ttft_p99'):,.0f}",
    "TTFT attained": lambda point: f"{point.value.attained['ttft']:.1%}",
    "TPOT attained": lambda point: f"{point.value.attained['tpot']:.1%}",
    "offline requests/s": lambda point: f"{point.value.offline_requests_per_s:.2f}",
    "preemptions": lambda point: str(point.value.totals.preemptions),
}
KV_COLUMNS: Columns[Point[Run]] = {
    **COLUMNS,
    "TBT p99 ms": lambda point: f"{point.value.latency_or_zero_ms('tbt_p99'):.0f}",
    "offline tokens/s": lambda point: f"{point.value.totals.offline_tokens / point.value.end_s:.0f}",
    "prompt tokens computed": lambda point: f"{point.value.totals.prompt_tokens:,}",
    "found in the cache": lambda point: f"{point.value.totals.cached_tokens:,}",
    "pauses": lambda point: str(point.value.totals.pauses),
    "slots to the host": lambda point: f"{point.value.totals.checkpointed_slots:,}",
    "and back": lambda point: f"{point.value.totals.restored_slots:,}",
}


def by_rate(
    lab: RateLab,
    scene: Scene,
    systems: Mapping[str, System],
    styles: Sequence[Style],
    quantities: Sequence[str],
    columns: Columns[Point[Run]],
    caption: str,
    height: float = 3.0,
) -> Result:
    """``systems``: by the names of their lines, in the order of ``styles``; ``quantities``: names in ``QUANTITIES``."""
    shown = Curves(
        xlabel="online requests/s",
        styles=dict(zip(systems, styles, strict=True)),
        quantities={name: QUANTITIES[name] for name in quantities},
    )
    budget_ms = lab.options.budget_ms
    points = [
        Point(dataset.name, "", name, rate, lab.bench(scene, dataset, rate).run(system, system.budget(budget_ms)))
        for dataset in scene.datasets
        for rate in lab.rates(scene)
        for name, system in systems.items()
    ]
    described = f"{caption} {lab.where(scene)}; hygen's latency budget is {budget_ms:g} ms."
    return shown.result(points, described, columns, height)
