"""The usual picture: points of several series over one axis, a panel for each quantity and group."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.charts import GREY, Curve, Panel, draw
from benchmarks.harness.page import Result
from benchmarks.harness.table import Row, Table

Style = tuple[str, str]  # marker and line, colour


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

    def result(self, points: Sequence[Point], caption: str, height: float) -> Result:
        """With a table that has a row for each point."""
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
