"""The command line of a benchmark."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import ParamSpec

import typer

from benchmarks.harness.table import Row, show

P = ParamSpec("P")
Results = Iterable[Row | str]


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
