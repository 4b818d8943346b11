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
