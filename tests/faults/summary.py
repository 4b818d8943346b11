"""What a campaign has seen, over all of its rounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.checker.history import Ended, History, Stream
from tests.checker.pauses import Pauses
from tests.checker.violation import Violation


@dataclass
class Summary:
    """``ends``: of processes, by why; ``takers``: of requests that moved with their KV, by executor."""

    events: Counter[str] = field(default_factory=Counter)
    streams: Counter[str] = field(default_factory=Counter)
    batches: Counter[str] = field(default_factory=Counter)
    num_lines: int = 0
    num_files: int = 0
    num_keys: int = 0
    pauses: Pauses = field(default_factory=Pauses)
    ends: Counter[str] = field(default_factory=Counter)
    takers: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)

    def add(self, history: History, violations: list[Violation]) -> None:
        """One round."""
        self.events.update(event.kind for event in history.events)
        self.streams.update(_called(stream) for stream in history.streams)
        accepted = [batch for batch in history.batches if batch.batch_id is not None]
        self.batches.update(batch.status for batch in accepted)
        self.num_lines += sum(len(batch.lines) for batch in accepted if batch.output is not None or batch.errors)
        self.num_files += len(history.files)
        self.num_keys += len(history.keys)
        self.pauses.add(history.streams, history.events)
        self.ends.update(start.reason for process in history.processes for start in process.starts if start.reason)
        self.violations += violations

    def merge(self, other: Summary) -> None:
        """Another campaign's."""
        for mine, theirs in (
            (self.events, other.events),
            (self.streams, other.streams),
            (self.batches, other.batches),
            (self.ends, other.ends),
            (self.takers, other.takers),
        ):
            mine.update(theirs)
        self.num_lines += other.num_lines
        self.num_files += other.num_files
        self.num_keys += other.num_keys
        self.pauses.merge(other.pauses)
        self.violations += other.violations


def _called(stream: Stream) -> str:
    if stream.excuse and stream.ended in (Ended.BROKEN, Ended.ERROR):
        return "not connected" if stream.status is None else "ended with the gateway"
    return stream.ended.value
