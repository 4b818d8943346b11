"""What a search tries, on stderr: one bar on a terminal, a line for each run elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadgen.progress import NoProgress, ReplayProgress


class TrialBar:
    """The run that is under way, by its online requests."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)
        self._num_runs = 0

    def phase(self, name: str, num_requests: int, backlog: int) -> None:
        self._num_runs += 1
        self._progress.reset(self._task, total=num_requests, description=f"run {self._num_runs}: {name}")

    def online(self, sent: int, finished: int, failed: int) -> None:
        self._progress.update(self._task, completed=finished)

    def offline(self, done: int, backlog: int) -> None:
        """Only the online requests make a run's length."""


class TrialLines(NoProgress):
    """A line when a run begins."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._num_runs = 0

    def phase(self, name: str, num_requests: int, backlog: int) -> None:
        self._num_runs += 1
        self._console.print(f"run {self._num_runs}: {name}", markup=False)


@contextmanager
def trial_progress_on(console: Console, shown: bool) -> Iterator[ReplayProgress]:
    """On the console, or nothing."""
    if not shown:
        yield NoProgress()
    elif not console.is_terminal:
        yield TrialLines(console)
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            yield TrialBar(progress)
