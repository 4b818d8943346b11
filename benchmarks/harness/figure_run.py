"""Runs a paper's figures one after another: the body of their command lines."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console

from benchmarks.harness.page import Page, Result
from benchmarks.harness.progress import FigureProgress, figure_progress
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
        with (
            errors_as_lines(console),
            figure_progress(console, is_shown(progress), len(names)) as told,
            _stopping(told) as shown,
        ):
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


class _Stopping:
    """Passes on what is told, and tells of an interrupt in turn: the KeyboardInterrupt of its own moment is lost where
    Python ignores exceptions, as in finalizers and in callbacks of weak references."""

    def __init__(self, progress: FigureProgress) -> None:
        self._progress = progress
        self._is_interrupted = False

    def on_interrupt(self, *_: object) -> None:
        self._is_interrupted = True
        raise KeyboardInterrupt

    def figure(self, name: str) -> None:
        self._check()
        self._progress.figure(name)

    def phase(self, name: str, num_requests: int, backlog: int) -> None:
        self._check()
        self._progress.phase(name, num_requests, backlog)

    def online(self, sent: int, finished: int, failed: int) -> None:
        self._check()
        self._progress.online(sent, finished, failed)

    def offline(self, done: int, backlog: int) -> None:
        self._check()
        self._progress.offline(done, backlog)

    def _check(self) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt


@contextmanager
def _stopping(progress: FigureProgress) -> Iterator[FigureProgress]:
    stopping = _Stopping(progress)
    before = signal.signal(signal.SIGINT, stopping.on_interrupt)
    try:
        yield stopping
    finally:
        signal.signal(signal.SIGINT, before)


def _write(page: Page, out: Path, result: Result) -> None:
    try:
        page.write(out, result)
    except OSError as error:
        raise WorkloadError(f"cannot write below {out}: {error.strerror}") from error
