"""Quantiles and Markdown tables for the benchmarks."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(ordered: Sequence[float], q: float) -> float:
    """The nearest-rank quantile of ascending values. Raises IndexError where there are none."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """As Markdown, ready for docs/benchmarks.md."""
    print("| " + " | ".join(header) + " |")
    print("|" + " --- |" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")
