"""The usual picture: points of several series over one axis, a panel for each quantity and group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from benchmarks.harness.charts import GREY, Curve, Panel, draw
from benchmarks.harness.page import Result
from benchmarks.harness.table import Columns, Table

T = TypeVar("T")
Style = tuple[str, str]  # marker and line, colour


@dataclass(frozen=True, slots=True)
class Point(Generic[T]):
    """``row`` and ``column``: of the panels that it is in, without a column the quantities stand side by side;
    ``series``: its line."""

    row: str
    column: str
    series: str
    x: float
    value: T


@dataclass(frozen=True, slots=True)
class Curves(Generic[T]):
    """What is shown of points. ``styles``: of the series, the first lying above the others; ``quantities``: by name;
    ``bounds``: dashed lines over the axis; ``ticks``: of a logarithmic axis."""

    xlabel: str
    styles: Mapping[str, Style]
    quantities: Mapping[str, Callable[[T], float]]
    bounds: Mapping[str, Callable[[float], float]] | None = None
    ticks: Sequence[float] = ()
    from_zero: bool = True

    def result(self, points: Sequence[Point[T]], caption: str, columns: Columns[Point[T]], height: float) -> Result:
        """With a table that has a row for each point."""
        picture = draw(self.panels(points), height, self.xlabel)
        return Result([Table.of(caption, columns, points)], picture)

    def panels(self, points: Sequence[Point[T]]) -> list[list[Panel]]:
        """In the order of the points."""
        grid: dict[str, dict[str, Panel]] = {}
        for (row, column), here in _grouped(points).items():
            for name, quantity in self.quantities.items():
                title, ylabel = (column, f"{row}\n{name}".strip()) if column else (name, row)
                panels_of_row = grid.setdefault(ylabel, {})
                panels_of_row[title] = Panel(
                    self._curves(here, quantity),
                    title=title if len(grid) == 1 else "",
                    ylabel="" if panels_of_row else ylabel,
                    from_zero=self.from_zero,
                    ticks=self.ticks,
                )
        return [list(panels_of_row.values()) for panels_of_row in grid.values()]

    def _curves(self, points: Sequence[Point[T]], quantity: Callable[[T], float]) -> list[Curve]:
        xs = sorted({point.x for point in points})
        curves = []
        for series, (style, colour) in self.styles.items():
            line = [point for point in points if point.series == series]
            curves.append(Curve(series, [p.x for p in line], [quantity(p.value) for p in line], colour, style))
        bounds = [Curve(name, xs, [bound(x) for x in xs], GREY, "--") for name, bound in (self.bounds or {}).items()]
        return curves + bounds


def _grouped(points: Sequence[Point[T]]) -> dict[tuple[str, str], list[Point[T]]]:
    groups: dict[tuple[str, str], list[Point[T]]] = {}
    for point in points:
        groups.setdefault((point.row, point.column), []).append(point)
    return groups
