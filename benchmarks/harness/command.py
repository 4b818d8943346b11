"""The command line of a benchmark, and the model that it runs; its tables as well, from ``tables``."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from benchmarks.harness.tables import Results as Results
from benchmarks.harness.tables import Row as Row
from benchmarks.harness.tables import Table as Table
from benchmarks.harness.tables import formatted as formatted
from benchmarks.harness.tables import head as head
from benchmarks.harness.tables import line as line
from benchmarks.harness.tables import quantile as quantile
from benchmarks.harness.tables import quantiles as quantiles
from benchmarks.harness.tables import show as show
from services.executor.prepare_model import DEFAULT_MODEL as DEFAULT_MODEL
from services.executor.prepare_model import default_cache_dir, prepare

P = ParamSpec("P")
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
