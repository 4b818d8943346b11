"""Pictures in one style: 800 pixels wide, in colours that colour-blind readers tell apart."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

WIDTH_INCHES, DOTS_PER_INCH = 8.0, 100

# Okabe and Ito's palette (2008)
BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#707070"


def panels(rows: int, columns: int, height_inches: float) -> tuple[Figure, NDArray]:  # type: ignore[type-arg]
    """A picture of ``rows`` by ``columns`` axes: [rows, columns]."""
    _set_style()
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def legend_above(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """One legend for all panels."""
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=9)


def from_zero(panel: Axes) -> None:
    """The y axis begins at 0, and the highest points are clear of its end."""
    panel.set_ylim(0, 1.08 * panel.get_ylim()[1])


def percent(shares: Sequence[float]) -> list[float]:
    return [100 * share for share in shares]


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
