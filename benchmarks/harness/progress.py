"""How far an invocation is: which figure, and which run of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

from loadgen.progress import bars_on


class FigureProgress:
    """What figures and their runs tell while they are made: one bar over the figures and one over the online requests
    of the run, where there are bars.

    Whoever tells something also learns of an interrupt: the KeyboardInterrupt of its own moment is lost where Python
    ignores exceptions, as in finalizers and in callbacks of weak references."""

    def __init__(self, bars: Progress | None = None, num_figures: int = 0) -> None:
        self._bars = bars
        self._is_interrupted = False
        self._num_runs = 0
        if bars is not None:
            self._figures = bars.add_task("figures", total=num_figures, completed=-1, facts="")
            self._run = bars.add_task("", facts="")

    def figure(self, name: str) -> None:
        """The next one is begun."""
        self._check()
        if self._bars is not None:
            self._bars.update(self._figures, description=name, advance=1)

    def phase(self, name: str, num_requests: int, backlog: int) -> None:
        self._check()
        self._num_runs += 1
        if self._bars is not None:
            self._bars.update(self._figures, facts=f"run {self._num_runs}")
            self._bars.reset(self._run, description="", total=num_requests, facts=name)

    def online(self, sent: int, finished: int, failed: int) -> None:
        self._check()
        if self._bars is not None:
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
    if not shown:
        yield FigureProgress()
        return
    with bars_on(console) as bars:
        yield FigureProgress(bars, num_figures)


@contextmanager
def interruptible(progress: FigureProgress) -> Iterator[None]:
    """Ctrl-C ends what is told to ``progress``, in the main thread."""
    before = signal.signal(signal.SIGINT, progress.on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
