"""Figures made one after another, each written as soon as it is done, and how far that is."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks.harness.page import Page, Result
from loadgen.cli import errors_as_lines, is_shown
from loadgen.progress import bars_on

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
            ExitStack() as after,
        ):
            after.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, progress.on_interrupt))
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


class FigureProgress:
    """What figures and their runs tell while they are made: one bar over the figures and one over the online requests
    of the run.

    Whoever tells something also learns of an interrupt: the KeyboardInterrupt of its own moment is lost where Python
    ignores exceptions, as in finalizers and in callbacks of weak references."""

    def __init__(self, bars: Progress | None = None, num_figures: int = 0) -> None:
        self._bars = bars or Progress(disable=True)
        self._is_interrupted = False
        self._num_runs = 0
        self._figures = self._bars.add_task("figures", total=num_figures, completed=-1, facts="")
        self._run = self._bars.add_task("", facts="")

    def figure(self, name: str) -> None:
        """The next one is begun."""
        self._check()
        self._bars.update(self._figures, description=name, advance=1)

    def phase(self, name: str, num_requests: int, backlog: int) -> None:
        self._check()
        self._num_runs += 1
        self._bars.update(self._figures, facts=f"run {self._num_runs}")
        self._bars.reset(self._run, description="", total=num_requests, facts=name)

    def online(self, sent: int, finished: int, failed: int) -> None:
        self._check()
        self._bars.update(self._run, completed=finished)

    def offline(self, done: int, backlog: int) -> None:
        self._check()

    def on_interrupt(self, *_: object) -> None:
        """A handler of SIGINT. Raises KeyboardInterrupt, as does whatever is told next."""
        self._is_interrupted = True
        raise KeyboardInterrupt

    def _check(self) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt


@contextmanager
def figure_progress(console: Console, shown: bool, num_figures: int) -> Iterator[FigureProgress]:
    """Bars on the console, or nothing."""
    with bars_on(console, disable=not shown) as bars:
        yield FigureProgress(bars, num_figures)
