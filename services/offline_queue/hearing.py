"""Since when the offline-queue has heard all that was said to it."""

from collections.abc import Callable

from shared.clock import Clock

STOOD_STILL_S = 3.0  # between two looks, which are a second or two apart


class Hearing:
    """Nobody's silence means anything while the bus is away, or this process stands still."""

    def __init__(self, bus_answers: Callable[[], bool], clock: Clock) -> None:
        self._bus_answers = bus_answers
        self._clock = clock
        self._since_s = self._looked_s = clock.monotonic_s()

    def silent_s(self, heard_s: float) -> float:
        """For how long somebody has been silent that was heard last at this (monotonic) time."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s > STOOD_STILL_S or not self._bus_answers():
            self._since_s = now_s
        self._looked_s = now_s
        return now_s - max(heard_s, self._since_s)
