"""What a command that takes long tells on stderr: a bar on a terminal, else a line now and then, as a log has it."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn, TimeRemainingColumn

from loadgen.progress import bars_on
from shared.errors import UnavailableApiError

T = TypeVar("T")

LINE_PERIOD_S = 30.0  # between two lines where nothing but figures has changed
SPEED_S = 60.0  # over which the time left is estimated
RETRY_S, MAX_RETRY_S = 0.5, 15.0
GIVE_UP_S = 300.0  # without any answer; a server that says that it is full is waited for


class Telling:
    """Use as a context manager."""

    def __init__(self, console: Console, now_s: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._now_s = now_s
        self._bars: Progress | None = None
        self._bar: TaskID | None = None
        self._said = ""
        self._said_s = now_s()

    @classmethod
    def on_stderr(cls) -> Self:
        return cls(Console(stderr=True))

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = TextColumn("left"), TimeRemainingColumn()
            self._bars = bars_on(self._console, *columns, speed_estimate_period=SPEED_S)
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def begin(self, what: str, total: int | None = None) -> None:
        """Of ``total`` things, where that is known."""
        if self._bars is not None:
            if self._bar is not None:
                self._bars.remove_task(self._bar)
            self._bar = self._bars.add_task(what, total=total, facts="")
        else:
            self.line(what)

    def update(self, what: str, done: int, total: int | None = None, facts: str = "") -> None:
        """How far it is."""
        if self._bars is not None and self._bar is not None:
            self._bars.update(self._bar, description=what, completed=done, total=total, facts=facts)
        elif what != self._said or self._now_s() - self._said_s >= LINE_PERIOD_S:
            figures = f"{done:,}" if total is None else f"{done:,} of {total:,} ({100 * done // max(1, total)}%)"
            self.line(", ".join(part for part in (f"{what}: {figures}", facts) if part), what)

    def line(self, text: str, what: str = "") -> None:
        """A line of its own."""
        self._said, self._said_s = what or text, self._now_s()
        stamp = "" if self._console.is_terminal else f"{time.strftime('%Y-%m-%d %H:%M:%S')} "
        self._console.print(f"{stamp}{text}", highlight=False, markup=False, soft_wrap=True)


class Patience:
    """Asks a server again that cannot be reached for a while, or is full."""

    def __init__(
        self, telling: Telling, sleep: Callable[[float], None] = time.sleep, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._telling = telling
        self._sleep = sleep
        self._now_s = now_s

    def ask(self, question: Callable[[], T]) -> T:
        """What it returns. Raises ApiError, at last also where the server stays away."""
        delay_s, give_up_s, told = RETRY_S, self._now_s() + GIVE_UP_S, ""
        while True:
            try:
                return question()
            except UnavailableApiError as error:
                if not error.is_full and self._now_s() >= give_up_s:
                    raise
                if str(error) != told:
                    self._telling.line(f"waiting, since {error}")
                told = str(error)
            self._sleep(delay_s)
            delay_s = min(2 * delay_s, MAX_RETRY_S)
