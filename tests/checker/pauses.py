"""How long streams paused, by the kinds of faults that went on then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.checker.history import Event, Stream

AFTER_S = 15.0  # what is felt of an event that late is put down to it


@dataclass
class Pauses:
    """The longest, seconds: of all streams, ``beside`` each kind of event, and of those beside which there was no other
    kind. Answers that are not streamed, and flex requests, which wait for their turn, have none."""

    longest_s: float = 0.0
    beside: dict[str, float] = field(default_factory=dict)
    beside_alone: dict[str, float] = field(default_factory=dict)

    def add(self, streams: Iterable[Stream], events: Iterable[Event]) -> None:
        """Those of a while with all of its events."""
        events = [*events]
        for stream in streams:
            if stream.is_whole or stream.is_flex:
                continue
            from_s, to_s = stream.longest_pause
            beside = (event.kind for event in events if event.overlaps(from_s, to_s, AFTER_S))
            self._note(to_s - from_s, list(dict.fromkeys(beside)))

    def merge(self, other: Pauses) -> None:
        """Those of another run."""
        self.longest_s = max(self.longest_s, other.longest_s)
        for mine, theirs in ((self.beside, other.beside), (self.beside_alone, other.beside_alone)):
            for kind, pause_s in theirs.items():
                mine[kind] = max(mine.get(kind, 0.0), pause_s)

    def _note(self, pause_s: float, kinds: list[str]) -> None:
        self.longest_s = max(self.longest_s, pause_s)
        for kind in kinds:
            self.beside[kind] = max(self.beside.get(kind, 0.0), pause_s)
        if len(kinds) == 1:
            self.beside_alone[kinds[0]] = max(self.beside_alone.get(kinds[0], 0.0), pause_s)
