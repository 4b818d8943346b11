"""What a benchmark tells: rows, of which those with the same headings are one table, and words between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, str]  # cells by their headings
Told = Sequence[Row | str]


@dataclass(frozen=True, slots=True)
class Table:
    """``rows``: with the same headings, at least one; ``caption``: what was run, in one sentence."""

    caption: str
    rows: Sequence[Row]

    def markdown(self) -> str:
        return markdown([self.caption, *self.rows])


@dataclass(frozen=True, slots=True)
class Result:
    """One figure."""

    tables: Sequence[Table]
    picture: Figure

    @property
    def told(self) -> Told:
        told: list[Row | str] = []
        for table in self.tables:
            told += [table.caption, *table.rows]
        return told

    def markdown(self) -> str:
        return markdown(self.told)


def markdown(told: Iterable[Row | str]) -> str:
    return "\n".join(parts(told))


def parts(told: Iterable[Row | str]) -> Iterator[str]:
    """Each row or string as it stands in a page, the head of a table above its first row, and an empty line between
    what does not belong together."""
    before: list[str] | None = None
    for each in told:
        headings = [] if isinstance(each, str) else list(each)
        gap = "" if before in (None, headings) else "\n"
        if isinstance(each, str):
            yield gap + each
        else:
            yield gap + (line(each) if before == headings else f"{head(each)}\n{line(each)}")
        before = headings


def head(row: Row) -> str:
    """The two lines above a table's rows."""
    return f"| {' | '.join(row)} |\n|{' --- |' * len(row)}"


def line(row: Row) -> str:
    return f"| {' | '.join(row.values())} |"
