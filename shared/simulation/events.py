"""Virtual time: what is to happen, in order."""

import heapq
from collections.abc import Callable
from itertools import count


class Events:
    """A clock that stands still between events. Of events at one time, those that were planned first happen first."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    @property
    def next_s(self) -> float | None:
        """When the next one happens; None where nothing is to happen."""
        return self._heap[0][0] if self._heap else None

    def at(self, time_s: float, happen: Callable[[], None]) -> None:
        """Not before now."""
        assert time_s >= self.now_s, f"{time_s} s is over at {self.now_s} s"
        heapq.heappush(self._heap, (time_s, next(self._numbers), happen))

    def run_next(self) -> None:
        """Raises IndexError where nothing is to happen."""
        self.now_s, _, happen = heapq.heappop(self._heap)
        happen()

    def advance(self, time_s: float) -> None:
        """To a time before which nothing is to happen."""
        assert self.now_s <= time_s
        self.now_s = time_s

    def monotonic_s(self) -> float:
        """As a ``Clock``."""
        return self.now_s

    def unix_s(self) -> float:
        """As a ``Clock``; time began with the simulation."""
        return self.now_s
