"""What a stage is given, and what it gives."""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.table import Row

Found = Generator[Row | str, None, str]
"""Rows and sentences; returns what came of it in one line. Raises SkippedError, and anything where it fails."""


class SkippedError(Exception):
    """Something is not there that the stage needs; it says what."""


@dataclass(frozen=True, slots=True)
class Context:
    """``device``: cuda or cpu; ``out``: where pictures go; ``model``: None is the default one where it is prepared, and
    else random weights; ``online``, ``offline``: files as ``slackwater replay`` takes them; None: drawn ones."""

    device: str
    out: Path
    model: str | None
    num_threads: int
    online: Path | None = None
    offline: Path | None = None
