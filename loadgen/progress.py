"""Progress of a replay on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn


class ReplayProgress(Protocol):
    """What a replay tells while it runs."""

    def phase(self, name: str, num_requests: int, backlog: int) -> None: ...

    def online(self, sent: int, finished: int, failed: int) -> None: ...

    def offline(self, done: int, backlog: int) -> None: ...


class NoProgress:
    """Says nothing."""

    def phase(self, name: str, num_requests: int, backlog: int) -> None: ...

    def online(self, sent: int, finished: int, failed: int) -> None: ...

    def offline(self, done: int, backlog: int) -> None: ...


class RenamedProgress:
    """Tells another of it, each phase under a name of its own."""

    def __init__(self, progress: ReplayProgress, rename: Callable[[str], str]) -> None:
        self._progress, self._rename = progress, rename
        self.online, self.offline = progress.online, progress.offline

    def phase(self, name: str, num_requests: int, backlog: int) -> None:
        self._progress.phase(self._rename(name), num_requests, backlog)


class BarProgress:
    """One bar for the online requests and one for the backlog, anew for each phase."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._online: TaskID | None = None
        self._offline: TaskID | None = None

    def phase(self, name: str, num_requests: int, backlog: int) -> None:
        for task in self._progress.task_ids:
            self._progress.stop_task(task)
        self._online = self._offline = None
        if num_requests:
            self._online = self._progress.add_task(f"{name}: online", total=num_requests, facts="")
        if backlog:
            self._offline = self._progress.add_task(f"{name}: offline", total=backlog, facts="")

    def online(self, sent: int, finished: int, failed: int) -> None:
        if self._online is not None:
            facts = f"{sent - finished} under way, {failed} failed"
            self._progress.update(self._online, completed=finished, facts=facts)

    def offline(self, done: int, backlog: int) -> None:
        if self._offline is not None:
            self._progress.update(self._offline, completed=done, total=backlog)


@contextmanager
def progress_on(console: Console, shown: bool) -> Iterator[ReplayProgress]:
    """Bars on the console, or nothing."""
    if not shown:
        yield NoProgress()
        return
    with bars_on(console) as progress:
        yield BarProgress(progress)


def bars_on(console: Console, *more: ProgressColumn, **options: Any) -> Progress:
    """Bars of tasks that have a field ``facts``, shown behind the bar, its times and ``more``."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), *more)
    return Progress(*columns, TextColumn("{task.fields[facts]}"), console=console, **options)
