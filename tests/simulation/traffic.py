"""When there is much to do: bursts of work with faults, and quiet spells between them, drawn from the seed."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Sequence

BURSTS_S = (60.0, 120.0, 240.0)
SPELLS_S = (600.0, 1800.0, 3600.0, 7200.0)
QUIET_TIMES = 60.0  # as long pauses, of clients and between faults, in a quiet spell
MIXED, BUSY, QUIET = TRAFFICS = ("mixed", "busy", "quiet")


class Traffic:
    """``ends_s``: of a burst, of the quiet spell after it, and so on, until the run's end. Without any it is one
    burst."""

    def __init__(self, ends_s: Sequence[float] = ()) -> None:
        self._ends_s = list(ends_s)

    @classmethod
    def draw(cls, kind: str, seed: str, from_s: float, until_s: float) -> Traffic:
        """Of a kind of TRAFFICS: bursts and spells, of which a burst is the first; one burst; or one spell."""
        if kind != MIXED:
            return cls([] if kind == BUSY else [from_s, math.inf])
        rng, ends_s = random.Random(f"{seed}:traffic"), [from_s]
        while ends_s[-1] < until_s:
            ends_s.append(ends_s[-1] + rng.choice(SPELLS_S if len(ends_s) % 2 == 0 else BURSTS_S))
        return cls(ends_s[1:])

    def quiet_s(self, at_s: float) -> float:
        """Until the next burst; 0 in one."""
        index = bisect_right(self._ends_s, at_s)
        return self._ends_s[index] - at_s if index % 2 and index < len(self._ends_s) else 0.0

    def next_fault_s(self, at_s: float, mean_wait_s: float, rng: random.Random) -> float:
        """A Poisson process, whose mean wait is that in a burst and ``QUIET_TIMES`` as long otherwise. It has no
        memory, so that it begins anew where one ends."""
        for end_s in self._ends_s[bisect_right(self._ends_s, at_s) :]:
            wait_s = rng.expovariate(1 / mean_wait_s) * (QUIET_TIMES if self.quiet_s(at_s) else 1.0)
            if at_s + wait_s < end_s:
                return at_s + wait_s
            at_s = end_s
        return at_s + rng.expovariate(1 / mean_wait_s)
