"""Runs a paper's figures one after another: the body of their command lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import typer
from rich.console import Console

from benchmarks.page import Page, Result
from benchmarks.progress import FigureProgress, figure_progress
from loadgen.cli import errors_as_lines, is_shown
from loadgen.errors import WorkloadError

EXIT_INTERRUPTED = 130

FigureMaker = Callable[[str], Result]


def run_figures(
    names: Sequence[str],
    page: Page,
    out: Path,
    progress: bool | None,
    start: Callable[[FigureProgress], FigureMaker],
) -> None:
    """Each is printed, and written below ``out`` when it is done, so that an interrupt loses only the one under way.

    ``start`` is called once and gives what makes a figure of a name. A named error ends the command with status 2, an
    interrupt with 130."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    done: list[str] = []
    try:
        with errors_as_lines(console), figure_progress(console, is_shown(progress), len(names)) as shown:
            make = start(shown)
            for name in names:
                shown.figure(name)
                result = make(name)
                _write(page, out, result)
                done.append(name)
                print(result.markdown(), end="\n\n", flush=True)
    except KeyboardInterrupt:
        console.print(f"stopped; done and written: {', '.join(done) or 'nothing'}")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _write(page: Page, out: Path, result: Result) -> None:
    try:
        page.write(out, result)
    except OSError as error:
        raise WorkloadError(f"cannot write below {out}: {error.strerror}") from error
