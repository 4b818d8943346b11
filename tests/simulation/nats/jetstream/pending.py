"""What a consumer delivered and waits to have acknowledged."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class Delivered:
    """``consumer_sequence``: of its first delivery; ``again_s``: when it is delivered again, on the loop's clock."""

    consumer_sequence: int
    again_s: float


class Pending:
    """By stream sequence; in the order of delivery."""

    def __init__(self) -> None:
        self.delivered: dict[int, Delivered] = {}
        self.counts: dict[int, int] = {}  # deliveries of those delivered more than once
        self.due: deque[int] = deque()  # to be delivered again

    def __len__(self) -> int:
        return len(self.delivered)

    def add(self, sequence: int, consumer_sequence: int, again_s: float) -> None:
        if sequence in self.delivered:
            self.delivered[sequence].again_s = again_s
        else:
            self.delivered[sequence] = Delivered(consumer_sequence, again_s)

    def drop(self, sequence: int) -> bool:
        """It is done with. False where it was not pending."""
        self.counts.pop(sequence, None)
        if sequence in self.due:
            self.due.remove(sequence)
        return self.delivered.pop(sequence, None) is not None

    def count(self, sequence: int) -> int:
        """One delivery more; how many there were with it."""
        self.counts[sequence] = self.counts.get(sequence, 1) + 1
        return self.counts[sequence]

    def expire(self, now_s: float) -> float | None:
        """Make due what was not acknowledged in time. Returns when to look again."""
        next_s: float | None = None
        if not self.delivered:
            return None
        waiting = dict.fromkeys(self.due)
        for sequence in sorted(self.delivered):
            again_s = self.delivered[sequence].again_s
            if sequence in waiting:
                continue
            if again_s <= now_s:
                self.due.append(sequence)
            elif next_s is None or again_s < next_s:
                next_s = again_s
        return next_s
