"""What holds for any fit on relative errors, however odd its samples."""

import math
from statistics import median_low

from services.predictor.window import Observation
from shared.latency.model import LatencyModel


def check_usable(model: LatencyModel, observations: list[Observation]) -> None:
    """Of a fit without a prior, whose slopes are not negative and which has a base. Least squares bring the squares of
    predicted by measured times, each by its weight, to no more than the weights together, and the base alone would
    meet the quickest batch. At most half of the samples are left out as outliers."""
    ratios = [model.predict_ms(shape) / latency_ms for shape, latency_ms, _ in observations]
    weights = [each.weight for each in observations]
    assert all(math.isfinite(ratio) and ratio >= 0 for ratio in ratios)
    weighted = [ratio * math.sqrt(weight) for ratio, weight in zip(ratios, weights, strict=True)]
    assert median_low(weighted) <= math.sqrt(sum(weights)) * (1 + 1e-6)
    assert max(ratios) >= min(weights) / sum(weights) * (1 - 1e-6)
