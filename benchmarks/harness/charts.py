"""Pictures in one style: 800 pixels wide, in colours that colour-blind readers tell apart."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH_INCHES, DOTS_PER_INCH = 8.0, 100

# Okabe and Ito's palette (2008)
BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#707070"


@dataclass(frozen=True, slots=True)
class Curve:
    """``style``: matplotlib's marker and line. A curve without a label is not in the legend."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: str
    style: str = "o-"
    fill: str | None = None  # of its markers, where it is not the curve's colour
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over common axes; the first ones lie above the last. ``ticks``: of a logarithmic x axis."""

    curves: Sequence[Curve]
    title: str = ""
    xlabel: str = ""
    ylabel: str = ""
    from_zero: bool = True
    ticks: Sequence[float] = ()


def draw(panels: Sequence[Sequence[Panel]], height_inches: float, xlabel: str = "") -> Figure:
    """Rows of panels, with one legend for all above them and ``xlabel`` below them."""
    _set_style()
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    axes = figure.subplots(len(panels), len(panels[0]), squeeze=False)
    for row, row_of_axes in zip(panels, axes, strict=True):
        for panel, drawn in zip(row, row_of_axes, strict=True):
            _draw(panel, drawn)
    figure.supxlabel(xlabel, fontsize=9)
    lines = {label: line for each in axes.flat for line, label in zip(*each.get_legend_handles_labels(), strict=True)}
    figure.legend(list(lines.values()), list(lines), loc="outside upper center", ncols=len(lines) or 1, fontsize=9)
    return figure


def percent(shares: Sequence[float]) -> list[float]:
    return [100 * share for share in shares]


def _draw(panel: Panel, axes: Axes) -> None:
    for number, curve in enumerate(panel.curves):
        label = curve.label or "_nolegend_"
        (line,) = axes.plot(curve.xs, curve.ys, curve.style, color=curve.colour, label=label, alpha=curve.opacity)
        line.set_zorder(3 - number / 100)
        line.set_markerfacecolor(curve.fill or curve.colour)
    axes.set(title=panel.title, xlabel=panel.xlabel, ylabel=panel.ylabel)
    if panel.ticks:
        axes.set_xscale("log", base=2)
        axes.set_xticks(panel.ticks, [f"{tick:g}" for tick in panel.ticks])
    if panel.from_zero:
        axes.set_ylim(0, 1.08 * axes.get_ylim()[1])  # the highest points are clear of its end


def _set_style() -> None:
    rcParams.update(
        {
            "font.size": 9,
            "axes.titlesize": 9,
            "axes.labelsize": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#e4e4e4",
            "grid.linewidth": 0.6,
            "legend.frameon": False,
            "lines.linewidth": 1.6,
            "lines.markersize": 5,
            "figure.dpi": DOTS_PER_INCH,
        }
    )
