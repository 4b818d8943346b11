"""The command line of a benchmark, the tables that it prints, and the model that it runs."""

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from services.executor.prepare_model import DEFAULT_MODEL as DEFAULT_MODEL
from services.executor.prepare_model import default_cache_dir, prepare

P = ParamSpec("P")
Row = Mapping[str, str]  # cells by their headings
Results = Iterable[Row | str]
ModelOption = Annotated[str, typer.Option(help="Name, folder or hub id.")]


def benchmark(measure: Callable[P, Results]) -> Callable[P, Results]:
    """Makes what stands last in a module its program: parameters are options, the module's docstring is the help, and
    what it yields is shown. Elsewhere it is what it was."""
    module = measure.__globals__
    if module["__name__"] == "__main__":

        @functools.wraps(measure)
        def command(*args: P.args, **kwargs: P.kwargs) -> None:
            show(measure(*args, **kwargs))

        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(help=module["__doc__"])(command)
        app(prog_name=f"python -m {module['__spec__'].name}")
    return measure


def model_folder(model: str = DEFAULT_MODEL) -> Path:
    """Made ready, which takes time once. Raises ConfigError for one that cannot be had."""
    return prepare(model, default_cache_dir(), lambda line: print(line, file=sys.stderr))


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
