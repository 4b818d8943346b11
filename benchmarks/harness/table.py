"""Tables in Markdown, as the documentation has them, and the quantiles that stand in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
Columns = Mapping[str, Callable[[T], str]]  # a cell of each row, by its heading


@dataclass(frozen=True, slots=True)
class Table:
    """``caption``: what was run, in one sentence; empty where the text around says it."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of(cls, caption: str, columns: Columns[T], each: Iterable[T]) -> Table:
        """A row for each."""
        return cls(caption, list(columns), [[cell(one) for cell in columns.values()] for one in each])

    @classmethod
    def pivot(
        cls,
        caption: str,
        left: Columns[T],
        column: Callable[[T], str],
        cell: Callable[[T], str],
        each: Iterable[T],
    ) -> Table:
        """A row for each value of the columns ``left``; of what shares them one cell for each value of ``column``."""
        rows: dict[tuple[str, ...], dict[str, str]] = {}
        for one in each:
            rows.setdefault(tuple(head(one) for head in left.values()), {})[column(one)] = cell(one)
        columns = list(dict.fromkeys(name for cells in rows.values() for name in cells))
        return cls(
            caption,
            [*left, *columns],
            [[*heads, *(cells.get(name, "") for name in columns)] for heads, cells in rows.items()],
        )

    def markdown(self) -> str:
        lines = [self.caption, ""] if self.caption else []
        lines += ["| " + " | ".join(self.header) + " |", "|" + " --- |" * len(self.header)]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in self.rows)])


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """As Markdown, ready for docs/benchmarks.md."""
    print(Table("", header, rows).markdown())


def quantile(ordered: Sequence[float], q: float) -> float:
    """The nearest-rank quantile of ascending values. Raises IndexError where there are none."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def quantiles(ordered: Sequence[float], *qs: float, digits: int = 2) -> list[str]:
    """Cells with those of ascending values. Raises IndexError where there are none."""
    return [f"{quantile(ordered, q):,.{digits}f}" for q in qs]
