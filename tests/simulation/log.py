"""The log of a run: what every process and the nemesis said, with virtual times; two runs of a seed have the same."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from shared.process.service import PLAIN_RECORD
from tests.simulation import loop
from tests.simulation.process import CURRENT


class RunLog(logging.Handler):
    """Hashes each line, and writes it where there is a file. ``on_unforeseen`` is told of tracebacks: a named error has
    none in a log, nor has a callback's, of which the loop tells itself."""

    def __init__(
        self, now_s: Callable[[], float], file: TextIO | None, on_unforeseen: Callable[[str], object] = lambda _: None
    ) -> None:
        super().__init__()
        self._on_unforeseen = on_unforeseen
        self._now_s = now_s
        self._file = file
        self._hash = hashlib.sha256()
        self.num_lines = 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get(None)
        if process is not None and process.state == "dead":
            return
        who = "-" if process is None else f"{process.name}#{process.pid}"
        extra = {key: value for key, value in vars(record).items() if key not in PLAIN_RECORD}
        line = f"{self._now_s():12.6f} {who} {record.levelname} {record.name}: {record.getMessage()}"
        if extra:
            line += f" {json.dumps(extra, default=str)}"
        if record.exc_info and record.exc_info[0] is not None:
            line += f" {record.exc_info[0].__name__}: {record.exc_info[1]}"
            if record.name != loop.__name__:
                self._on_unforeseen(line)
            if self._file is not None:  # addresses stand in it, so it is not hashed
                self._file.write(logging.Formatter().formatException(record.exc_info) + "\n")
        self.say(line)

    def say(self, line: str) -> None:
        self.num_lines += 1
        self._hash.update(line.encode())
        if self._file is not None:
            self._file.write(line + "\n")


@contextmanager
def logging_to(handler: logging.Handler, level: int = logging.INFO) -> Iterator[None]:
    """All logging of this interpreter."""
    root = logging.getLogger()
    before, level_before = root.handlers[:], root.level
    root.handlers[:] = [handler]
    root.setLevel(level)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level_before)
