"""The tables that benchmarks print. Nothing here needs more than Python, so that it runs where little is installed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Row = Mapping[str, str]  # cells by their headings
Results = Iterable[Row | str]


@dataclass(frozen=True, slots=True)
class Table:
    """``rows``: with the same headings, at least one; ``caption``: what was run, in one sentence."""

    caption: str
    rows: Sequence[Row]

    def markdown(self) -> str:
        return "\n".join([self.caption, "", head(self.rows[0]), *map(line, self.rows)])


def head(row: Row) -> str:
    """The two lines above a table's rows."""
    return f"| {' | '.join(row)} |\n|{' --- |' * len(row)}"


def line(row: Row) -> str:
    return f"| {' | '.join(row.values())} |"


def show(results: Iterable[Row | str]) -> None:
    """Print each at once, ready for docs/benchmarks.md: rows with the same headings as one table, a string as it is."""
    headings: list[str] | None = None
    for result in results:
        before, headings = headings, [] if isinstance(result, str) else list(result)
        if before is not None and before != headings:
            print()
        if not isinstance(result, str):
            result = line(result) if before == headings else f"{head(result)}\n{line(result)}"
        print(result, flush=True)


def quantile(ordered: Sequence[float], q: float) -> float:
    """The nearest-rank quantile of ascending values. Raises IndexError where there are none."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def quantiles(ordered: Sequence[float], qs: Mapping[str, float], digits: int = 2) -> dict[str, str]:
    """Cells with those of ascending values, by heading. Raises IndexError where there are none."""
    return formatted(f",.{digits}f", {heading: quantile(ordered, q) for heading, q in qs.items()})


def formatted(form: str, values: Mapping[str, float]) -> dict[str, str]:
    """Cells, by heading."""
    return {heading: format(value, form) for heading, value in values.items()}
