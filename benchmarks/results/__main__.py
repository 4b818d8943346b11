"""``python -m benchmarks.results``: the tables of the documentation, made anew or looked at."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.harness.kept import DOCS, Kept, Place, all_kept, rendered
from benchmarks.harness.origin import ROOT
from benchmarks.harness.page import EXIT_INTERRUPTED
from benchmarks.results.again import Job, jobs_of, run
from benchmarks.results.code import age_of
from loadgen.cli import errors_as_lines
from loadgen.errors import WorkloadError

DataOption = Annotated[Path, typer.Option(metavar="FOLDER", help="Where the files of docs/data.md are.")]
OnlyOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="PAGE, or PAGE/NAME of one table; repeatable.")
]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def results(
    only: OnlyOption = None,
    as_list: Annotated[bool, typer.Option("--list", help="What is made by which command.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Which are older than their code; runs nothing, and ends with 1 if any is, or if that cannot be said.",
        ),
    ] = False,
    render: Annotated[bool, typer.Option("--render", help="Write what is kept into the pages; runs nothing.")] = False,
    data: DataOption = Path(),
) -> None:
    """Make the tables of the documentation anew, each with the command that made it.

    What a command tells is kept below docs/results/ with date, command, revision, machine and seed, and shown in its
    page. That takes hours; Ctrl-C keeps what is done.
    """
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    with errors_as_lines(console):
        kept = chosen(all_kept(DOCS), only)
        if check:
            raise typer.Exit(1 if show_ages(kept) else 0)
        if as_list:
            for job in jobs_of(kept):
                print(f"{names(job)}  {job.command or 'unknown'}")
        elif render:
            for page, text in pages(kept).items():
                page.write_text(text)
        else:
            raise typer.Exit(make(jobs_of(kept), data, console))


def chosen(kept: Mapping[Place, Kept], only: Sequence[str] | None) -> Mapping[Place, Kept]:
    """Raises WorkloadError for a name that none has."""
    known = {name for place in kept for name in (str(place), place.page)}
    if unknown := [name for name in only or () if name not in known]:
        raise WorkloadError(f"no table {unknown[0]!r}; --list shows all")
    return {place: each for place, each in kept.items() if not only or {str(place), place.page}.intersection(only)}


def show_ages(kept: Mapping[Place, Kept], docs: Path = DOCS, root: Path = ROOT) -> bool:
    """Whether one is not known to be as new as its code in the repository at ``root``, or a page shows something else
    than what is kept."""
    ages = {place: age_of(each.origin, root) for place, each in kept.items()}
    for place, age in ages.items():
        print(f"{place}  {age.words()}")
    other = [page for page, text in pages(kept, docs).items() if page.read_text() != text]
    for page in other:
        print(f"{page} shows something else than what is kept of it: --render")
    num_older, num_unknown = (sum(bool(getattr(age, of)) for age in ages.values()) for of in ("commits", "unknown"))
    print(f"{num_older} of {len(kept)} are older than their code; of {num_unknown} that cannot be said")
    return bool(other) or not all(age.is_new for age in ages.values())


def pages(kept: Mapping[Place, Kept], docs: Path = DOCS) -> dict[Path, str]:
    """Their texts with all that is kept."""
    by_page: dict[Path, dict[str, Kept]] = {}
    for place, each in kept.items():
        by_page.setdefault(place.page_file(docs), {})[place.name] = each
    return {page: rendered(page.read_text(), those) for page, those in by_page.items()}


def make(jobs: Sequence[Job], data: Path, console: Console) -> int:
    """One after another, with a line for each; the exit status."""
    done, failed = list[str](), False
    try:
        for number, job in enumerate(jobs, start=1):
            start_s, head = time.monotonic(), f"{number}/{len(jobs)} {names(job)}"
            if not job.is_benchmark:
                console.print(f"{head}: left out, no benchmark makes it: {job.command or 'unknown'}", markup=False)
                failed = True
                continue
            if missing := job.missing(data):
                console.print(f"{head}: left out, --data has no {', '.join(missing)}", markup=False)
                failed = True
                continue
            console.print(f"{head}: {job.command}", markup=False)
            error = run(job, data)
            failed |= error is not None
            if error is None:
                done.append(names(job))
            console.print(f"  {'done' if error is None else error} ({time.monotonic() - start_s:.0f} s)", markup=False)
    except KeyboardInterrupt:
        console.print(f"stopped; done and written: {', '.join(done) or 'nothing'}", markup=False)
        return EXIT_INTERRUPTED
    return 1 if failed else 0


def names(job: Job) -> str:
    return ", ".join(map(str, job.places))


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.results")
