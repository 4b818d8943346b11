"""What came of runs, a line each, in a file that later runs add to."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.checker.pauses import Pauses
from tests.checker.violation import Violation
from tests.faults.summary import Summary
from tests.simulation.run import Order, Outcome

logger = logging.getLogger(__name__)


class Record(msgspec.Struct, frozen=True):
    """``digest``: of the run's log; ``hours``: virtual ones; ``cpu_s``: that they took; ``violations``: (invariant, how
    it was broken); ``setup``: the stack that was drawn. The rest is as of a ``Summary``."""

    order: Order
    digest: str
    hours: float
    cpu_s: float
    events: dict[str, int]
    streams: dict[str, int]
    batches: dict[str, int]
    num_lines: int
    num_files: int
    num_keys: int
    ends: dict[str, int]
    takers: dict[str, int]
    longest_pause_s: float
    beside: dict[str, float]
    beside_alone: dict[str, float]
    violations: list[tuple[str, str]]
    setup: dict[str, Any] = {}

    @classmethod
    def of(cls, outcome: Outcome) -> Record:
        summary = outcome.summary
        return cls(
            order=outcome.order,
            digest=outcome.digest,
            hours=outcome.hours,
            cpu_s=outcome.cpu_s,
            events=dict(summary.events),
            streams=dict(summary.streams),
            batches=dict(summary.batches),
            num_lines=summary.num_lines,
            num_files=summary.num_files,
            num_keys=summary.num_keys,
            ends=dict(summary.ends),
            takers=dict(summary.takers),
            longest_pause_s=summary.pauses.longest_s,
            beside=summary.pauses.beside,
            beside_alone=summary.pauses.beside_alone,
            violations=[(each.invariant, each.what) for each in summary.violations],
            setup=outcome.setup.told(),
        )

    def summary(self) -> Summary:
        """Without what clients saw."""
        return Summary(
            events=Counter(self.events),
            streams=Counter(self.streams),
            batches=Counter(self.batches),
            num_lines=self.num_lines,
            num_files=self.num_files,
            num_keys=self.num_keys,
            pauses=Pauses(self.longest_pause_s, self.beside, self.beside_alone),
            ends=Counter(self.ends),
            takers=Counter(self.takers),
            violations=[Violation(*each, seen=None) for each in self.violations],
        )


class RecordFile:
    """One JSON object a line. A line that was torn when its writer was killed is passed over."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Iterator[Record]:
        if not self._path.exists():
            return
        for number, line in enumerate(self._path.read_bytes().splitlines(), start=1):
            try:
                if line:
                    yield msgspec.json.decode(line, type=Record)
            except msgspec.DecodeError as error:
                logger.warning("a line is passed over", extra={"line": number, "why": str(error)})

    def add(self, record: Record) -> None:
        """It is in the file when this returns."""
        with self._path.open("ab+") as file:
            if file.seek(0, 2):
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(msgspec.json.encode(record) + b"\n")
