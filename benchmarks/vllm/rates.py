"""Which rate of online requests keeps a server busy for a wanted share of the time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_RATE = 0.4
MAX_SHARE = 0.99  # a run that was busy all the time says only that its rate was high enough


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
    ordered = sorted((_depth(point.share), point.rate) for point in points)
    wanted = _depth(share)
    below = max((each for each in ordered if each[0] <= wanted), default=(0.0, 0.0))
    above = min((each for each in ordered if each[0] > wanted), default=None)
    if above is None:
        rate = below[1] * wanted / below[0]
    else:
        rate = below[1] + (above[1] - below[1]) * (wanted - below[0]) / (above[0] - below[0])
    return float(f"{rate:.2g}")


def nearest(share: float, points: Sequence[Point]) -> Point:
    """The run that comes closest to it. Raises ValueError where there is none."""
    return min(points, key=lambda point: (abs(point.share - share), point.rate))


def _depth(share: float) -> float:
    return -math.log1p(-min(share, MAX_SHARE))
