"""What each run costs online work, over what offline work got."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from benchmarks.harness.charts import BLUE, GREEN, GREY, ORANGE, PINK, Curve, Panel, draw
from benchmarks.vllm.comparison import Cell, CoRun
from loadgen.report.slo import Slo, parse_slo

COLOURS = {"vllm-priority": ORANGE, "vllm-plain": PINK, "slackwater-vllm": BLUE, "slackwater-torch": GREEN}


def picture_of(cells: Sequence[Cell], exprs: Sequence[str]) -> Figure:
    """A row for each SLO, a column for each load, a line for each system with a point for each run; the best of the
    runs that kept all SLOs is filled."""
    shares = sorted({cell.share for cell in cells})
    panels = [
        [_panel([cell for cell in cells if cell.share == share], slo, share == shares[0]) for share in shares]
        for slo in map(parse_slo, exprs)
    ]
    return draw(panels, 2.6 * len(panels), "offline tokens/s")


def _panel(cells: Sequence[Cell], slo: Slo, is_first: bool) -> Panel:
    curves = [curve for cell in cells for curve in _curves(cell, slo)]
    if slo.relative:
        most = max((x for curve in curves for x in curve.xs), default=1.0)
        curves.append(Curve("", [0.0, most], [slo.limit] * 2, GREY, "--"))
    ylabel = f"{slo.metric.removesuffix('_ms').upper()} {slo.statistic} (times online only)"
    title = f"{cells[0].share:.0%} busy with online work"
    return Panel(curves, title, ylabel=ylabel if is_first else "", from_zero=False)


def _curves(cell: Cell, slo: Slo) -> list[Curve]:
    alone_ms = slo.value_ms(cell.alone)
    if not alone_ms:
        return []

    def curve(label: str, runs: Sequence[CoRun], fill: str | None) -> Curve:
        ratios = [(slo.value_ms(run.online) or 0.0) / alone_ms for run in runs]
        colour = COLOURS.get(cell.system, GREY)
        xs = [run.trial.offline_tokens_per_s for run in runs]
        return Curve(label, [0.0, *xs] if label else xs, [1.0, *ratios] if label else ratios, colour, "o-", fill)

    line = curve(cell.system, sorted(cell.runs, key=lambda run: run.trial.offline_tokens_per_s), "white")
    return [line] if cell.best is None else [curve("", [cell.best], None), line]
