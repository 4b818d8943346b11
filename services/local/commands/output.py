"""Tables on stdout: as wide as the terminal, and in whole lines where stdout is none."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

WHOLE = 100_000  # columns where nothing is to be cut or wrapped
GAP = 2  # columns between cells


def stdout_console() -> Console:
    """Without markup, so that what others wrote is printed as it is."""
    is_terminal = sys.stdout.isatty()
    return Console(highlight=False, markup=False, soft_wrap=not is_terminal, width=None if is_terminal else WHOLE)


class SplitTable:
    """A table whose columns stand in as many tables below each other as the width needs; each begins with the first
    column. Cells are never cut."""

    def __init__(self, columns: Sequence[str], num_left: int = 1) -> None:
        """``num_left``: of the columns, the first so many are flush left, the others right."""
        self._columns = columns
        self._num_left = num_left
        self._rows: list[list[Text]] = []

    def add_row(self, *cells: str | Text) -> None:
        """One cell for each column."""
        assert len(cells) == len(self._columns)
        self._rows.append([Text(cell) if isinstance(cell, str) else cell for cell in cells])

    def parts(self, width: int) -> list[list[int]]:
        """The columns of each table, by their places; a column that is too wide by itself stands alone with the
        first."""
        parts: list[list[int]] = [[0]]
        for column in range(1, len(self._columns)):
            taken = sum(self._width(each) + GAP for each in parts[-1])
            if len(parts[-1]) > 1 and taken + self._width(column) > width:
                parts.append([0])
            parts[-1].append(column)
        return parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in self.parts(options.max_width):
            table = Table(box=None, header_style="bold", padding=(0, GAP, 0, 0), pad_edge=False)
            for column in part:
                justify = "left" if column < self._num_left else "right"
                table.add_column(self._columns[column], justify=justify, no_wrap=True)  # type: ignore[arg-type]
            for cells in self._rows:
                table.add_row(*(cells[column] for column in part))
            yield table

    def _width(self, column: int) -> int:
        return max(len(self._columns[column]), *(row[column].cell_len for row in self._rows), 0)
