"""Figures made one after another: each is written as soon as it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import typer
from rich.console import Console

from benchmarks.harness.page import Page, Result
from benchmarks.harness.progress import FigureProgress, figure_progress, interruptible
from loadgen.cli import errors_as_lines, is_shown

EXIT_INTERRUPTED = 130


def run_figures(
    names: Sequence[str],
    page: Page,
    out: Path,
    shown: bool | None,
    start: Callable[[FigureProgress], Callable[[str], Result]],
) -> None:
    """Each is printed, and written below ``out`` when it is done, so that an interrupt loses only the one under way.

    ``start`` is called once and gives what makes a figure of a name. A named error ends the command with status 2, an
    interrupt with 130."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    done: list[str] = []
    try:
        with (
            errors_as_lines(console),
            figure_progress(console, is_shown(shown), len(names)) as progress,
            interruptible(progress),
        ):
            make = start(progress)
            for name in names:
                progress.figure(name)
                result = make(name)
                page.write(out, name, result)
                done.append(name)
                print(result.markdown(), end="\n\n", flush=True)
    except KeyboardInterrupt:
        console.print(f"stopped; done and written: {', '.join(done) or 'nothing'}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
