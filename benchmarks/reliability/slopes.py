"""Whether what is measured over hours goes up: least-squares slopes, with an error that correlated samples do not make
too small."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

NUM_BLOCKS = 16  # whose means the line is fitted to: neighbouring samples are alike, means of minutes far less so
SURE = 3.0  # standard errors that a slope must be from 0 to be believed


@dataclass(frozen=True, slots=True)
class Slope:
    """Of one quantity, in its unit an hour; ``error``: one standard error. ``mean``: of the quantity."""

    per_hour: float
    error: float
    mean: float

    def verdict(self, bound_per_hour: float) -> str:
        """``bound_per_hour``: a growth that does not matter."""
        if self.per_hour > bound_per_hour and self.per_hour > SURE * self.error:
            return "GROWS"
        if self.per_hour + SURE * self.error <= bound_per_hour:
            return "flat"
        return "cannot be told yet"


def slope(times_s: Sequence[float], values: Sequence[float]) -> Slope | None:
    """None for too few samples: three for each of NUM_BLOCKS, of equal number, whose means are fitted."""
    size = len(times_s) // NUM_BLOCKS
    if size < 3:
        return None
    first = len(times_s) - size * NUM_BLOCKS
    starts = range(first, len(times_s), size)
    hours = [math.fsum(times_s[start : start + size]) / size / 3600 for start in starts]
    means = [math.fsum(values[start : start + size]) / size for start in starts]
    return _fitted(hours, means)


def _fitted(xs: Sequence[float], ys: Sequence[float]) -> Slope:
    """Least squares; the error from what is left, over n - 2 degrees of freedom."""
    x_mean, y_mean = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - x_mean) ** 2 for x in xs)
    per_x = math.fsum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread
    left = math.fsum((y - y_mean - per_x * (x - x_mean)) ** 2 for x, y in zip(xs, ys, strict=True))
    return Slope(per_x, math.sqrt(left / (len(xs) - 2) / spread), y_mean)
