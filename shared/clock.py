"""The clocks. Services take one as an argument so that tests and the simulator can bring their own."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds from two sources: ``monotonic_s`` for durations, ``unix_s`` for what outlives the process."""

    def monotonic_s(self) -> float: ...

    def unix_s(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        return time.perf_counter()

    def unix_s(self) -> float:
        return time.time()


def waited_s(clock: Clock, since_unix_s: float) -> float:
    """Since a moment that another machine noted, whose clock may be ahead: not negative."""
    return max(0.0, clock.unix_s() - since_unix_s)


class Deadline:
    """A moment by the clock of the day. That clock may be set: as much time has to pass as it said at first."""

    def __init__(self, clock: Clock, unix_s: float) -> None:
        self._clock = clock
        self._unix_s = unix_s
        self._monotonic_s = clock.monotonic_s() + unix_s - clock.unix_s()

    def left_s(self) -> float:
        """Not positive once it has come."""
        return max(self._unix_s - self._clock.unix_s(), self._monotonic_s - self._clock.monotonic_s())
