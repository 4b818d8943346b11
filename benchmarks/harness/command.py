"""The command line of a benchmark, what becomes of what it tells, and the model that it runs."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer

from benchmarks.harness.kept import DOCS, Kept, Place, keep
from benchmarks.harness.origin import origin_now
from benchmarks.harness.table import Result, flat
from benchmarks.harness.table import Results as Results
from benchmarks.harness.table import Row as Row
from benchmarks.harness.table import Table as Table
from benchmarks.harness.table import formatted as formatted
from benchmarks.harness.table import quantile as quantile
from benchmarks.harness.table import quantiles as quantiles
from benchmarks.harness.table import show as show
from services.executor.prepare_model import DEFAULT_MODEL as DEFAULT_MODEL
from services.executor.prepare_model import default_cache_dir, prepare
from shared.errors import SlackwaterError
from shared.settings.command_options import with_option_groups

EXIT_BAD_INPUT = 2  # as slackwater's commands
P = ParamSpec("P")
ModelOption = Annotated[str, typer.Option(help="Name, folder or hub id.")]
KeepOption = Annotated[
    Place | None,
    typer.Option(
        parser=Place.of,
        metavar="PAGE/NAME",
        help="Keep what is shown with its origin, and show it in that page of docs/, as benchmarks/planning.",
    ),
]


def benchmark(measure: Callable[P, Results]) -> Callable[P, Results]:
    """Makes what stands last in a module its program: parameters are options, those of a dataclass its fields; the
    module's docstring is the help, and what it yields is shown, with ``--keep`` in a page too. Elsewhere it is what it
    was. A named error ends it with one line and status 2."""
    module = measure.__globals__
    if module["__name__"] == "__main__":
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(help=module["__doc__"])(_command(measure))
        app(prog_name=f"python -m {module['__spec__'].name}")
    return measure


def _command(measure: Callable[..., Results]) -> Callable[..., None]:
    expanded = with_option_groups(measure)
    own = list(inspect.signature(expanded, eval_str=True).parameters.values())
    option = inspect.Parameter("keep", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=KeepOption)
    parameters = [*(each.replace(kind=option.kind) for each in own), option]

    @functools.wraps(measure)
    def command(**given: Any) -> None:
        place, seed = given.pop("keep"), given.get("seed", measure.__globals__.get("SEED"))
        try:
            if place is None:
                show(expanded(**given))
            else:
                keep_all(place, expanded(**given), seed)
        except SlackwaterError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(EXIT_BAD_INPUT) from error

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def keep_all(place: Place, results: Results, seed: object, docs: Path = DOCS) -> None:
    """Shown, and kept when it has come to its end."""
    origin, seen = origin_now(seed), list[Row | str | Result]()

    def noted() -> Iterator[Row | str | Result]:
        for result in results:
            seen.append(result)
            yield result

    show(noted())
    picture = next((each.picture for each in seen if isinstance(each, Result)), None)
    keep(docs, place, Kept(origin, list(flat(seen))), picture)


def model_folder(model: str = DEFAULT_MODEL) -> Path:
    """Made ready, which takes time once. Raises ConfigError for one that cannot be had."""
    return prepare(model, default_cache_dir(), lambda line: print(line, file=sys.stderr))
