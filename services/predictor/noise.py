"""How much equal batches differ, which no model of their features can predict."""

import math
from collections.abc import Iterable

from services.predictor.window import Observation


def noise_floor(observations: Iterable[Observation]) -> float | None:
    """The mean absolute deviation of equal batches from their true mean, as a share of it; None where no shape was
    repeated.

    It is estimated from differences of one repetition to the next, of which the mean is the square root of 2 times
    that deviation for normal noise: unlike the deviation from a mean of a few repetitions it is not too small, and a
    machine that has become slower in between does not count as noise.
    """
    last: dict[tuple[int, ...], float] = {}
    differences: list[float] = []
    for shape, latency_ms, _ in observations:
        before_ms = last.get(shape.sums)
        if before_ms is not None:
            differences.append(abs(latency_ms - before_ms) / ((latency_ms + before_ms) / 2))
        last[shape.sums] = latency_ms
    return sum(differences) / len(differences) / math.sqrt(2.0) if differences else None
