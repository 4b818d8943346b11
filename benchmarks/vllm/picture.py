"""What each run costs online work, over what offline work got."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.charts import BLUE, GREEN, GREY, ORANGE, PINK, legend_above, panels
from benchmarks.vllm.comparison import Cell, CoRun
from loadgen.report.slo import Slo, parse_slo

COLOURS = {"vllm-priority": ORANGE, "vllm-plain": PINK, "slackwater-vllm": BLUE, "slackwater-torch": GREEN}


def picture_of(cells: Sequence[Cell], exprs: Sequence[str]) -> Figure:
    """A row for each SLO, a column for each load, a line for each system with a point for each run; the best of the
    runs that kept all SLOs is filled."""
    shares = sorted({cell.share for cell in cells})
    slos = [parse_slo(expr) for expr in exprs]
    figure, axes = panels(len(slos), len(shares), 2.6 * len(slos))
    for slo, row in zip(slos, axes, strict=True):
        row[0].set_ylabel(f"{slo.metric.removesuffix('_ms').upper()} {slo.statistic} (times online only)")
        for share, panel in zip(shares, row, strict=True):
            for cell in cells:
                if cell.share == share:
                    _draw(panel, cell, slo)
            if slo.relative:
                panel.axhline(slo.limit, color=GREY, linewidth=0.8, linestyle="--")
    for share, panel in zip(shares, axes[0], strict=True):
        panel.set_title(f"{share:.0%} busy with online work")
    figure.supxlabel("offline tokens/s", fontsize=9)
    lines = {label: line for panel in axes.flat for line, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    legend_above(figure, list(lines.values()), list(lines))
    return figure


def _draw(panel: Axes, cell: Cell, slo: Slo) -> None:
    alone_ms = slo.value_ms(cell.alone)
    if not alone_ms:
        return

    def point(run: CoRun) -> tuple[float, float]:
        return run.trial.offline_tokens_per_s, (slo.value_ms(run.online) or 0.0) / alone_ms

    colour = COLOURS.get(cell.system, GREY)
    runs = sorted(cell.runs, key=lambda run: run.trial.offline_tokens_per_s)
    points = [(0.0, 1.0), *map(point, runs)]
    panel.plot(*zip(*points, strict=True), "o-", color=colour, label=cell.system, markerfacecolor="white")
    if cell.best is not None:
        panel.plot(*point(cell.best), "o", color=colour)
