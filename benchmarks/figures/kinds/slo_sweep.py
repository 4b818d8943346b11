"""End-to-end comparison: each metric as the SLO, with several tolerances (HyGen section 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.figures.kinds.curves import Curves, Point, Style
from benchmarks.figures.metrics import METRICS, Metric
from benchmarks.figures.trace_lab import Setting, TraceLab
from benchmarks.harness.charts import BLUE, ORANGE, PINK, draw
from benchmarks.harness.page import Result
from benchmarks.harness.table import Columns, Table
from benchmarks.lab.lab import HYGEN, SARATHI, STAR, Bench
from benchmarks.lab.outcome import Found, Measured

NO_SLO, OURS, THEIRS = "sarathi++ (no SLO)", "hygen", "hygen-star"
TOLERATED = "tolerated interference (%)"
STYLES: dict[str, Style] = {OURS: ("o-", BLUE), THEIRS: ("s-", PINK), NO_SLO: ("-", ORANGE)}


@dataclass(frozen=True, slots=True)
class Kept:
    """What both systems reach under one SLO."""

    bench: Bench
    metric: Metric
    tolerance: float
    hygen: Found
    star: Found

    @property
    def runs(self) -> dict[str, Measured]:
        return {NO_SLO: self.bench.run(SARATHI), THEIRS: self.star.measured, OURS: self.hygen.measured}

    @property
    def gain(self) -> float | None:
        """HyGen's offline throughput over HyGen*'s; None where HyGen* has none."""
        theirs = self.star.measured.offline_tokens_per_s
        return self.hygen.measured.offline_tokens_per_s / theirs if theirs > 0 else None

    def ratio(self, measured: Measured) -> float:
        return self.metric.ratio(self.bench, measured)


@dataclass(frozen=True, slots=True)
class Quantity:
    """``cell``: of the table; ``curves``: over pairs of what was kept and one system's run."""

    caption: str
    cell: Callable[[Kept], str]
    curves: Curves[tuple[Kept, Measured]]


def ratio_cell(kept: Kept) -> str:
    """What hygen reached, and the budget that it reached it with; a broken SLO is said so."""
    reached = kept.ratio(kept.hygen.measured)
    return f"{reached:.3f}x ({kept.hygen.text_with_unit})" + ("" if reached <= 1 + kept.tolerance else " BROKEN")


def throughput_cell(kept: Kept) -> str:
    """Of hygen and hygen-star, and their ratio."""
    ours, theirs = (found.measured.offline_tokens_per_s for found in (kept.hygen, kept.star))
    return f"{ours:,.0f} / {theirs:,.0f}" + ("" if kept.gain is None else f" ({kept.gain:.2f}x)")


RATIOS = Quantity(
    "Latency over online-only, and hygen's latency budget in brackets.",
    ratio_cell,
    Curves(
        TOLERATED,
        STYLES,
        {"ratio to online only": lambda pair: pair[0].ratio(pair[1])},
        bounds={"SLO": lambda x: 1 + x / 100},
        from_zero=False,
    ),
)
THROUGHPUTS = Quantity(
    "Offline tokens/s of hygen / hygen-star, and their ratio.",
    throughput_cell,
    Curves(TOLERATED, STYLES, {"offline tokens/s": lambda pair: pair[1].offline_tokens_per_s}),
)
LEFT: Columns[Kept] = {
    "setting": lambda kept: kept.bench.name,
    "metric": lambda kept: kept.metric.label,
    "online only ms": lambda kept: f"{kept.bench.online_only.latency_ms(kept.metric.name):.1f}",
    "sarathi++": lambda kept: f"{kept.ratio(kept.bench.run(SARATHI)):.2f}x",
}


def slo_sweep(
    lab: TraceLab, settings: Sequence[Setting], quantities: Sequence[Quantity], with_summary: bool = False
) -> Result:
    """``with_summary``: a table with a row for each machine."""
    swept = {setting: _sweep(lab.bench(setting), lab.options.tolerances) for setting in settings}
    everything = [kept for of_setting in swept.values() for kept in of_setting]
    points = [
        Point(kept.bench.name, kept.metric.label, system, 100 * kept.tolerance, (kept, measured))
        for kept in everything
        for system, measured in kept.runs.items()
    ]
    tables = [
        Table.pivot(
            f"{quantity.caption} {lab.where(settings)}.",
            LEFT,
            lambda kept: f"SLO {1 + kept.tolerance:.2f}x",
            quantity.cell,
            everything,
        )
        for quantity in quantities
    ]
    if with_summary:
        tables.append(Table.of("Tokens/s, prompt and output together.", SUMMARY, swept.values()))
    panels = [row for quantity in quantities for row in quantity.curves.panels(points)]
    return Result(tables, draw(panels, 4.6, TOLERATED))


def _sweep(bench: Bench, tolerances: Sequence[float]) -> list[Kept]:
    """Metric by metric, in the order of the tolerances."""
    return [
        Kept(bench, metric, tolerance, bench.largest(HYGEN, slos), bench.largest(STAR, slos))
        for metric in METRICS
        for tolerance in tolerances
        for slos in [[metric.slo(tolerance)]]
    ]


def _best_total(swept: Sequence[Kept]) -> float:
    return max(kept.hygen.measured.total_tokens_per_s for kept in swept)


def _gains(swept: Sequence[Kept]) -> list[float]:
    return [kept.gain for kept in swept if kept.gain is not None] or [float("nan")]


SUMMARY: Columns[Sequence[Kept]] = {
    "setting": lambda swept: swept[0].bench.name,
    "online only, total": lambda swept: f"{swept[0].bench.online_only.total_tokens_per_s:,.0f}",
    "sarathi++, offline": lambda swept: f"{swept[0].bench.run(SARATHI).offline_tokens_per_s:,.0f}",
    "sarathi++, total": lambda swept: f"{swept[0].bench.run(SARATHI).total_tokens_per_s:,.0f}",
    "hygen, best total": lambda swept: f"{_best_total(swept):,.0f}",
    "over online only": lambda swept: f"{_best_total(swept) / swept[0].bench.online_only.total_tokens_per_s:.2f}x",
    "hygen over hygen-star, mean": lambda swept: f"{sum(_gains(swept)) / len(_gains(swept)):.2f}x",
    "most": lambda swept: f"{max(_gains(swept)):.2f}x",
}
