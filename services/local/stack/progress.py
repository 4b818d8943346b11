"""What `slackwater up` says while it works: all of it on stderr, since stdout carries the ready line alone."""

import sys

from rich.console import Console
from rich.text import Text

from shared.nowhere import write_nowhere


def announce(line: str) -> None:
    """On stdout. Where it cannot be written, or nobody reads it any more, what is done goes on."""
    try:
        print(line, flush=True)
    except OSError:
        write_nowhere(sys.stdout.fileno())


class Progress:
    """On a terminal one line with a spinner, above which notes scroll; elsewhere a line for each new activity and each
    note. ``redraws``: it shows how far an activity is, not only which one."""

    def __init__(self) -> None:
        self._console = _Console(stderr=True)
        self._spinner = self._console.status("")
        self._last = ""
        self.redraws = self._console.is_terminal

    def step(self, text: str, detail: str = "") -> None:
        """The present activity; replaces the one before. ``detail`` says how far it is, where that can be redrawn."""
        if self.redraws:
            self._spinner.update(Text(f"{text}: {detail}" if detail else text))
            self._spinner.start()
        elif text != self._last:
            self._last = text
            self.note(text)

    def note(self, text: str) -> None:
        """Something that stays to be read."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """No activity any more. More notes may follow."""
        self._spinner.stop()
        self._last = ""


class _Console(Console):
    """Where nobody reads any more, nothing is said any more; what is done goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        write_nowhere(sys.stderr.fileno())

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError:  # a terminal that was closed
            self.on_broken_pipe()
