"""End-to-end comparison: each metric as the SLO, with several tolerances (HyGen section 5.2)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from benchmarks.figures.trace_lab import METRICS, NO_SLO, OURS, THEIRS, Kept, Setting, TraceLab
from benchmarks.harness.charts import Curves, Point, Style, draw
from benchmarks.harness.command import Row, Table
from benchmarks.harness.page import Result
from benchmarks.lab.lab import SARATHI
from benchmarks.lab.outcome import Measured
from shared.pictures import BLUE, ORANGE, PINK

TOLERATED = "tolerated interference (%)"
STYLES: dict[str, Style] = {OURS: ("o-", BLUE), THEIRS: ("s-", PINK), NO_SLO: ("-", ORANGE)}


@dataclass(frozen=True, slots=True)
class Quantity:
    """``cell``: of the table; ``value``: of one system's run, over which the ``curves`` are drawn."""

    name: str
    caption: str
    cell: Callable[[Kept], str]
    value: Callable[[Kept, Measured], float]
    curves: Curves

    def points(self, swept: Sequence[Kept]) -> list[Point]:
        points = []
        for kept in swept:
            for system, measured in kept.runs.items():
                value = {self.name: self.value(kept, measured)}
                points.append(Point(kept.bench.name, kept.metric.label, system, 100 * kept.tolerance, value, {}))
        return points

    def table(self, swept: Sequence[Kept], where: str) -> Table:
        """A row for each metric of each setting, a column for each tolerance."""
        rows = [
            _left(first) | {f"SLO {1 + kept.tolerance:.2f}x": self.cell(kept) for kept in (first, *others)}
            for _, (first, *others) in groupby(swept, lambda kept: (kept.bench.name, kept.metric))
        ]
        return Table(f"{self.caption} {where}.", rows)


def ratio_cell(kept: Kept) -> str:
    """What hygen reached, and the budget that it reached it with; a broken SLO is said so."""
    reached = kept.ratio(kept.hygen.measured)
    return f"{reached:.3f}x ({kept.hygen.text_with_unit})" + ("" if reached <= 1 + kept.tolerance else " BROKEN")


def throughput_cell(kept: Kept) -> str:
    """Of hygen and hygen-star, and their ratio."""
    ours, theirs = (found.measured.offline_tokens_per_s for found in (kept.hygen, kept.star))
    return f"{ours:,.0f} / {theirs:,.0f}" + (f" ({kept.gain(kept.hygen.measured):.2f}x)" if theirs else "")


RATIOS = Quantity(
    "ratio to online only",
    "Latency over online-only, and hygen's latency budget in brackets.",
    ratio_cell,
    Kept.ratio,
    Curves(TOLERATED, STYLES, bounds={"SLO": lambda x: 1 + x / 100}, from_zero=False),
)
THROUGHPUTS = Quantity(
    "offline tokens/s",
    "Offline tokens/s of hygen / hygen-star, and their ratio.",
    throughput_cell,
    lambda kept, measured: measured.offline_tokens_per_s,
    Curves(TOLERATED, STYLES),
)


def slo_sweep(
    lab: TraceLab, settings: Sequence[Setting], quantities: Sequence[Quantity], with_summary: bool = False
) -> Result:
    """``with_summary``: a table with a row for each machine."""
    swept = [
        [Kept.of(bench, metric, tolerance) for metric in METRICS for tolerance in lab.options.tolerances]
        for bench in map(lab.bench, settings)
    ]
    everything = [kept for of_setting in swept for kept in of_setting]
    tables = [quantity.table(everything, lab.where(settings)) for quantity in quantities]
    if with_summary:
        tables.append(Table("Tokens/s, prompt and output together.", list(map(_summary, swept))))
    panels = [row for quantity in quantities for row in quantity.curves.panels(quantity.points(everything))]
    return Result(tables, draw(panels, 4.6, TOLERATED))


def _left(kept: Kept) -> dict[str, str]:
    return {
        "setting": kept.bench.name,
        "metric": kept.metric.label,
        "online only ms": f"{kept.bench.online_only.latency_ms(kept.metric.name):.1f}",
        "sarathi++": f"{kept.ratio(kept.bench.run(SARATHI)):.2f}x",
    }


def _summary(swept: Sequence[Kept]) -> Row:
    """Of one setting."""
    bench = swept[0].bench
    alone, sarathi = bench.online_only, bench.run(SARATHI)
    best = max(kept.hygen.measured.total_tokens_per_s for kept in swept)
    gains = [gain for kept in swept if not math.isnan(gain := kept.gain(kept.hygen.measured))] or [math.nan]
    return {
        "setting": bench.name,
        "online only, total": f"{alone.total_tokens_per_s:,.0f}",
        "sarathi++, offline": f"{sarathi.offline_tokens_per_s:,.0f}",
        "sarathi++, total": f"{sarathi.total_tokens_per_s:,.0f}",
        "hygen, best total": f"{best:,.0f}",
        "over online only": f"{best / alone.total_tokens_per_s:.2f}x",
        "hygen over hygen-star, mean": f"{sum(gains) / len(gains):.2f}x",
        "most": f"{max(gains):.2f}x",
    }
