"""Pictures in one style: 800 pixels wide, in colours that colour-blind readers tell apart; and the usual one, points of
several series over one axis, a panel for each quantity and group."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness.table import Row, Table
from shared import pictures
from shared.pictures import GREY

if TYPE_CHECKING:  # a page needs more than a picture does
    from benchmarks.harness.page import Result

WIDTH_INCHES = 8.0
LEGEND_CHARACTERS, LEGEND_GAP = 105, 7  # that a row has, and what stands before a label takes of them
STYLE = pictures.STYLE | {"lines.linewidth": 1.6, "lines.markersize": 5}
Style = tuple[str, str]  # of a curve: marker and line, colour


@dataclass(frozen=True, slots=True)
class Curve:
    """``style``: matplotlib's marker and line. A curve without a label is not in the legend."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: str
    style: str = "o-"
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over common axes; the first ones lie above the last. ``ticks``: of a logarithmic x axis. ``names``: of
    groups of bars, in place of numbers on the x axis, with a bar of each curve in each group. ``is_stacked``: areas,
    the first at the bottom. ``is_log``: both axes; they do not begin at zero."""

    curves: Sequence[Curve]
    title: str = ""
    ylabel: str = ""
    from_zero: bool = True
    ticks: Sequence[float] = ()
    names: Sequence[str] = ()
    is_stacked: bool = False
    is_log: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """``row`` and ``column``: of the panels that it is in, without a column the quantities stand side by side;
    ``series``: its line; ``values``: by quantity; ``cells``: its row of the table."""

    row: str
    column: str
    series: str
    x: float
    values: Mapping[str, float]
    cells: Row


@dataclass(frozen=True, slots=True)
class Curves:
    """What is shown of points. ``styles``: of the series, the first lying above the others; ``bounds``: dashed lines
    over the axis; ``ticks``: of a logarithmic axis."""

    xlabel: str
    styles: Mapping[str, Style]
    bounds: Mapping[str, Callable[[float], float]] | None = None
    ticks: Sequence[float] = ()
    from_zero: bool = True

    def result(self, points: Sequence[Point], caption: str, height: float) -> "Result":
        """With a table that has a row for each point."""
        from benchmarks.harness.page import Result

        table = Table(caption, [point.cells for point in points])
        return Result([table], draw(self.panels(points), height, self.xlabel))

    def panels(self, points: Sequence[Point]) -> list[list[Panel]]:
        """In the order of the points."""
        groups: dict[tuple[str, str, str], list[Point]] = {}
        for point in points:
            for quantity in point.values:
                groups.setdefault((point.row, point.column, quantity), []).append(point)
        grid: dict[str, dict[str, Panel]] = {}
        for (row, column, quantity), here in groups.items():
            title, ylabel = (column, f"{row}\n{quantity}".strip()) if column else (quantity, row)
            panels_of_row = grid.setdefault(ylabel, {})
            panels_of_row[title] = Panel(
                self._curves(here, quantity),
                title=title if len(grid) == 1 else "",
                ylabel="" if panels_of_row else ylabel,
                from_zero=self.from_zero,
                ticks=self.ticks,
            )
        return [list(panels_of_row.values()) for panels_of_row in grid.values()]

    def _curves(self, points: Sequence[Point], quantity: str) -> list[Curve]:
        xs = sorted({point.x for point in points})
        curves = []
        for series, (style, colour) in self.styles.items():
            line = [point for point in points if point.series == series]
            curves.append(Curve(series, [p.x for p in line], [p.values[quantity] for p in line], colour, style))
        bounds = [Curve(name, xs, [bound(x) for x in xs], GREY, "--") for name, bound in (self.bounds or {}).items()]
        return curves + bounds


def draw(panels: Sequence[Sequence[Panel]], height_inches: float, xlabel: str = "") -> Figure:
    """Rows of panels, with one legend for all above them and ``xlabel`` below them."""
    rcParams.update(STYLE)
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    axes = figure.subplots(len(panels), len(panels[0]), squeeze=False)
    for panel, drawn in zip(chain.from_iterable(panels), axes.flat, strict=True):
        _draw(panel, drawn)
    figure.supxlabel(xlabel, fontsize=9)
    lines = {label: line for each in axes.flat for line, label in zip(*each.get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(lines.values()), list(lines), loc="outside upper center", ncols=_legend_columns(list(lines)), fontsize=9
    )
    return figure


def _legend_columns(labels: Sequence[str]) -> int:
    """One row, or as few as the picture is wide enough for."""
    num_rows = math.ceil(sum(len(label) + LEGEND_GAP for label in labels) / LEGEND_CHARACTERS)
    return max(1, math.ceil(len(labels) / max(1, num_rows)))


def _draw(panel: Panel, axes: Axes) -> None:
    if panel.names:
        _draw_bars(panel, axes)
    elif panel.is_stacked:
        _draw_areas(panel, axes)
    else:
        _draw_lines(panel, axes)
    axes.set(title=panel.title, ylabel=panel.ylabel)
    if panel.ticks:
        axes.set_xscale("log", base=2)
        axes.set_xticks(panel.ticks, [f"{tick:g}" for tick in panel.ticks])
    if panel.is_log:
        axes.set(xscale="log", yscale="log")
    if panel.from_zero and not (panel.is_stacked or panel.is_log):
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])  # the highest points are clear of its end


def _draw_lines(panel: Panel, axes: Axes) -> None:
    for number, curve in enumerate(panel.curves):
        label = curve.label or "_nolegend_"
        (line,) = axes.plot(curve.xs, curve.ys, curve.style, color=curve.colour, label=label, alpha=curve.opacity)
        line.set_zorder(3 - number / 100)


def _draw_bars(panel: Panel, axes: Axes) -> None:
    width = 0.8 / len(panel.curves)
    for number, curve in enumerate(panel.curves):
        lefts = [x - 0.4 + number * width for x in curve.xs]
        bars = axes.bar(lefts, curve.ys, 0.92 * width, align="edge", color=curve.colour, label=curve.label, zorder=3)
        axes.bar_label(bars, [f"{y:.2f}" for y in curve.ys], fontsize=7, padding=1)
    axes.set_xticks(range(len(panel.names)), panel.names)
    axes.grid(visible=False, axis="x")


def _draw_areas(panel: Panel, axes: Axes) -> None:
    xs = panel.curves[0].xs
    labels, colours = [curve.label for curve in panel.curves], [curve.colour for curve in panel.curves]
    axes.stackplot(xs, [curve.ys for curve in panel.curves], labels=labels, colors=colours, step="post", linewidth=0)
    axes.set(xlim=(xs[0], xs[-1]), ylim=(0, max(map(sum, zip(*(curve.ys for curve in panel.curves), strict=True)))))
