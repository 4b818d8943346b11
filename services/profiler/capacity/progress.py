"""How far a plan is, on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TaskID

from loadgen.progress import bars_on
from services.profiler.capacity.side_by_side import PlanProgress


class NoPlanProgress:
    """Says nothing."""

    def phase(self, device: str, name: str, total: int) -> None: ...

    def done(self, device: str, finished: int) -> None: ...


class PlanLines:
    """A line when a run begins."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def phase(self, device: str, name: str, total: int) -> None:
        self._console.print(f"{device}: {name}", markup=False)

    def done(self, device: str, finished: int) -> None: ...


class PlanBars:
    """A bar for each device: its run's online requests."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._num_runs: dict[str, int] = {}

    def phase(self, device: str, name: str, total: int) -> None:
        if device not in self._tasks:
            self._tasks[device] = self._progress.add_task(device, total=None, facts="")
        number = self._num_runs[device] = self._num_runs.get(device, 0) + 1
        self._progress.reset(self._tasks[device], total=total or None, facts=f"run {number}: {name}")

    def done(self, device: str, finished: int) -> None:
        self._progress.update(self._tasks[device], completed=finished)


@contextmanager
def plan_progress_on(console: Console, shown: bool) -> Iterator[PlanProgress]:
    """On the console, or nothing."""
    if not shown:
        yield NoPlanProgress()
    elif not console.is_terminal:
        yield PlanLines(console)
    else:
        with bars_on(console, transient=True) as bars:
            yield PlanBars(bars)
