"""How an operator finds, in few runs, the largest value of a knob that keeps the SLOs, and the rate of online requests
that keeps a server busy for a wanted share of the time."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

FIRST_RATE = 0.4
MAX_SHARE = 0.99  # a run that was busy all the time says only that its rate was high enough


class KnobSearch:
    """It says which value to run and is told whether the SLOs were kept: from a first guess in strides that double,
    up while they are kept and down while they are not, then by bisection. At most ``max_runs`` runs."""

    def __init__(self, ladder: Sequence[float], first: float, max_runs: int) -> None:
        """``ladder``: the values, ascending; the search begins at the largest that is not above ``first``. Raises
        ValueError for an empty ladder, and one that does not ascend."""
        if not ladder or any(after <= before for before, after in pairwise(ladder)):
            raise ValueError(f"a ladder needs ascending values, not {list(ladder)}")
        self._ladder = ladder
        self._first = max(0, bisect_right(ladder, first) - 1)
        self._runs_left = max_runs
        self._stride = 1
        self._kept: dict[int, bool] = {}  # by index in the ladder

    def next_value(self) -> float | None:
        """What to run next; None where the search is over."""
        index = self._next_index() if self._runs_left > 0 else None
        return None if index is None else self._ladder[index]

    def tell(self, value: float, kept: bool) -> None:
        """The outcome of ``next_value``."""
        if self._kept:
            self._stride *= 2
        self._kept[self._ladder.index(value)] = kept
        self._runs_left -= 1

    def _next_index(self) -> int | None:
        if not self._kept:
            return self._first
        end = len(self._ladder)
        low = max((index for index, kept in self._kept.items() if kept), default=-1)  # the largest that kept the SLOs
        high = min((index for index, kept in self._kept.items() if not kept and index > low), default=end)
        if high - low <= 1:
            return None
        if high == end:
            return min(low + self._stride, end - 1)
        return max(high - self._stride, 0) if low < 0 else (low + high) // 2


@dataclass(frozen=True, slots=True)
class Point:
    """An online-only run: requests/s, and the share of its window in which at least one was under way."""

    rate: float
    share: float


def rate_for(share: float, points: Sequence[Point]) -> float:
    """Requests/s, to two digits: by the runs so far, and by a guess before the first.

    With Poisson arrivals that do not wait for each other a server idles for exp(-rate * service time) of the time
    (M/G/infinity). So the logarithm of the idle share is interpolated, from (0, 0) through the runs; beyond them it
    goes on at the slope of the last."""
    if not points:
        return FIRST_RATE
    depths, rates = zip(*sorted((_depth(point.share), point.rate) for point in points), strict=True)
    wanted = _depth(share)
    beyond = rates[-1] * wanted / depths[-1]
    rate = beyond if wanted >= depths[-1] else np.interp(wanted, (0.0, *depths), (0.0, *rates))
    return float(f"{rate:.2g}")


def nearest(share: float, points: Sequence[Point]) -> Point:
    """The run that comes closest to it. Raises ValueError where there is none."""
    return min(points, key=lambda point: (abs(point.share - share), point.rate))


def _depth(share: float) -> float:
    return -math.log1p(-min(share, MAX_SHARE))
