"""The command line of a benchmark, what becomes of what it tells, and the model that it runs."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer

from benchmarks.harness.kept import DOCS, Kept, Place, keep
from benchmarks.harness.origin import origin_now
from benchmarks.harness.table import Result, parts
from benchmarks.harness.table import Row as Row
from benchmarks.harness.table import Table as Table
from services.executor.prepare_model import DEFAULT_MODEL as DEFAULT_MODEL
from services.executor.prepare_model import default_cache_dir, prepare

P = ParamSpec("P")
Results = Iterable[Row | str | Result]
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
    """Makes what stands last in a module its program: parameters are options, the module's docstring is the help, and
    what it yields is shown, with ``--keep`` in a page too. Elsewhere it is what it was."""
    module = measure.__globals__
    if module["__name__"] == "__main__":
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(help=module["__doc__"])(_command(measure))
        app(prog_name=f"python -m {module['__spec__'].name}")
    return measure


def _command(measure: Callable[..., Results]) -> Callable[..., None]:
    own = list(inspect.signature(measure, eval_str=True).parameters.values())
    option = inspect.Parameter("keep", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=KeepOption)
    parameters = [*(each.replace(kind=option.kind) for each in own), option]

    @functools.wraps(measure)
    def command(**given: Any) -> None:
        place = given.pop("keep")
        if place is None:
            show(measure(**given))
        else:
            keep_all(place, measure(**given), given.get("seed", measure.__globals__.get("SEED")))

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


def show(results: Results) -> None:
    """Print each at once, ready for a page: rows with the same headings as one table, a string as it is."""
    for part in parts(flat(results)):
        print(part, flush=True)


def flat(results: Results) -> Iterator[Row | str]:
    for result in results:
        yield from result.told if isinstance(result, Result) else [result]


def quantile(ordered: Sequence[float], q: float) -> float:
    """The nearest-rank quantile of ascending values. Raises IndexError where there are none."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def quantiles(ordered: Sequence[float], qs: Mapping[str, float], digits: int = 2) -> dict[str, str]:
    """Cells with those of ascending values, by heading. Raises IndexError where there are none."""
    return formatted(f",.{digits}f", {heading: quantile(ordered, q) for heading, q in qs.items()})


def formatted(form: str, values: Mapping[str, float]) -> dict[str, str]:
    """Cells, by heading."""
    return {heading: format(value, form) for heading, value in values.items()}
