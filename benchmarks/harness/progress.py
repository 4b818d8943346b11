"""How far an invocation is: which figure, and which run of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import Progress

from loadgen.progress import NoProgress, ReplayProgress, bars_on


class FigureProgress(ReplayProgress, Protocol):
    """What figures tell while they are made."""

    def figure(self, name: str) -> None: ...


class SilentFigures(NoProgress):
    """Says nothing."""

    def figure(self, name: str) -> None: ...


class FigureBars:
    """One bar over the figures and one over the online requests of the run."""

    def __init__(self, progress: Progress, num_figures: int) -> None:
        self._progress = progress
        self._figures = progress.add_task("figures", total=num_figures, completed=-1, facts="")
        self._run = progress.add_task("", facts="")
        self._num_runs = 0

    def figure(self, name: str) -> None:
        self._progress.update(self._figures, description=name, advance=1)

    def phase(self, name: str, num_requests: int, backlog: int) -> None:
        self._num_runs += 1
        self._progress.update(self._figures, facts=f"run {self._num_runs}")
        self._progress.reset(self._run, description="", total=num_requests, facts=name)

    def online(self, sent: int, finished: int, failed: int) -> None:
        self._progress.update(self._run, completed=finished)

    def offline(self, done: int, backlog: int) -> None: ...


@contextmanager
def figure_progress(console: Console, shown: bool, num_figures: int) -> Iterator[FigureProgress]:
    """Bars on the console, or nothing."""
    if not shown:
        yield SilentFigures()
        return
    with bars_on(console) as progress:
        yield FigureBars(progress, num_figures)
