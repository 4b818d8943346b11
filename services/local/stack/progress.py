"""What `slackwater up` says while it works: all of it on stderr, since stdout carries the ready line alone."""

from __future__ import annotations

import sys
from typing import Protocol

from rich.console import Console
from rich.status import Status
from rich.text import Text


class Progress(Protocol):
    """Where a stack tells what it does. ``redraws``: it shows how far an activity is, not only which one."""

    redraws: bool

    def step(self, text: str, detail: str = "") -> None:
        """The present activity; replaces the one before. ``detail`` says how far it is, where that can be redrawn."""

    def note(self, text: str) -> None:
        """Something that stays to be read."""

    def close(self) -> None:
        """No activity any more. More notes may follow."""


def stderr_progress() -> Progress:
    """A live line on a terminal, plain lines elsewhere."""
    return TerminalProgress() if sys.stderr.isatty() else PlainProgress()


class TerminalProgress:
    """One line with a spinner; notes scroll above it."""

    redraws = True

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._status: Status | None = None

    def step(self, text: str, detail: str = "") -> None:
        line = Text(f"{text}: {detail}" if detail else text)
        if self._status is None:
            self._status = self._console.status(line)
            self._status.start()
        else:
            self._status.update(line)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


class PlainProgress:
    """A line for each new activity and each note."""

    redraws = False

    def __init__(self) -> None:
        self._last = ""

    def step(self, text: str, detail: str = "") -> None:
        if text != self._last:
            self._last = text
            self.note(text)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        self._last = ""
