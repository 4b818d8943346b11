"""What a benchmark tells: rows, of which those with the same headings are one table, and words between them. Nothing
here needs more than Python, so that it runs where little is installed."""

from __future__ import annotations

import math
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


Results = Iterable[Row | str | Result]


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


def show(results: Results) -> None:
    """Print each at once, ready for a page: rows with the same headings as one table, a string as it is."""
    for part in parts(flat(results)):
        print(part, flush=True)


def flat(results: Results) -> Iterator[Row | str]:
    for result in results:
        yield from result.told if isinstance(result, Result) else [result]


def quantile(ordered: Sequence[float], q: float) -> float:
    """The nearest-rank quantile of ascending values: the least one that a share ``q`` of them is not above. Raises
    IndexError where there are none."""
    return ordered[max(0, math.ceil(round(q * len(ordered), 9)) - 1)]


def quantiles(ordered: Sequence[float], qs: Mapping[str, float], digits: int = 2) -> dict[str, str]:
    """Cells with those of ascending values, by heading. Raises IndexError where there are none."""
    return formatted(f",.{digits}f", {heading: quantile(ordered, q) for heading, q in qs.items()})


def formatted(form: str, values: Mapping[str, float]) -> dict[str, str]:
    """Cells, by heading."""
    return {heading: format(value, form) for heading, value in values.items()}
