"""What a search tries, on stderr: one bar on a terminal, a line for each run elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TaskID

from loadgen.progress import NoProgress, ReplayProgress, bars_on


class TrialProgress(NoProgress):
    """The run that is under way: a bar of its online requests, since those make a run's length, or a line when it
    begins."""

    def __init__(self, console: Console, bar: Progress | None) -> None:
        self._console = console
        self._bar = bar
        self._task = bar.add_task("", total=None, facts="") if bar else TaskID(0)
        self._num_runs = 0

    def phase(self, name: str, num_requests: int, backlog: int) -> None:
        self._num_runs += 1
        title = f"run {self._num_runs}: {name}"
        if self._bar:
            self._bar.reset(self._task, total=num_requests, description=title)
        else:
            self._console.print(title, markup=False)

    def online(self, sent: int, finished: int, failed: int) -> None:
        if self._bar:
            self._bar.update(self._task, completed=finished)


@contextmanager
def trial_progress_on(console: Console, shown: bool) -> Iterator[ReplayProgress]:
    """On the console, or nothing."""
    if not shown:
        yield NoProgress()
    elif not console.is_terminal:
        yield TrialProgress(console, None)
    else:
        with bars_on(console, transient=True) as bar:
            yield TrialProgress(console, bar)
