"""Timing things in turns, so that all of them meet the same disturbances."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Step = Callable[[], object]
T = TypeVar("T")


@dataclass(slots=True)
class Times:
    """Milliseconds of each run, by the clock and of CPU time. ``processor_s``: seconds of all threads, or of one."""

    clock_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    processor_s: Callable[[], float] = time.process_time

    def time(self, step: Callable[[], T]) -> T:
        """Returns what the step does."""
        cpu_s, clock_s = self.processor_s(), time.perf_counter()
        done = step()
        self.clock_ms.append((time.perf_counter() - clock_s) * 1e3)
        self.cpu_ms.append((self.processor_s() - cpu_s) * 1e3)
        return done

    @property
    def median_ms(self) -> float:
        """By the clock."""
        return statistics.median(self.clock_ms)

    @property
    def median_cpu_ms(self) -> float:
        return statistics.median(self.cpu_ms)


def in_turns(steps: Sequence[Step], turns: int, warm_up: int = 1, timer: type[Times] = Times) -> list[Times]:
    """Of each step, after ``warm_up`` turns that do not count; each is first as often as the others."""
    times = [timer() for _ in steps]
    for turn in range(turns + warm_up):
        for place in range(len(steps)):
            number = (turn + place) % len(steps)
            (times[number] if turn >= warm_up else timer()).time(steps[number])
    return times
