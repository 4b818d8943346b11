"""Fit BROS's cost model (section 4.1) to timed batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.predictor.regression import Array, Samples, solve_trimmed
from services.predictor.window import Observation, covers_both_kinds
from shared.latency.bros import BrosLatencyModel

NUM_COEFFICIENTS = 6


def fit_bros(observations: Sequence[Observation]) -> BrosLatencyModel | None:
    """Non-negative least squares on relative errors, once more without the outliers. Both phases are fitted together,
    since most batches have both. None where the observations tell only one of them, or fewer distinct shapes than the
    model has coefficients."""
    if not covers_both_kinds(observations, NUM_COEFFICIENTS):
        return None
    samples = Samples.of(observations)
    solution = solve_trimmed(_rows(samples), samples)
    return None if solution is None else BrosLatencyModel(*map(float, solution))


def _rows(samples: Samples) -> Array:
    """[n, 6], in the order of the coefficients."""
    s_p, n_p, s_d, n_d, pairs = samples.sums.T  # in the order of BatchFeatures's fields
    return np.stack([n_p > 0, s_p, pairs, n_d > 0, n_d, s_d], axis=1).astype(np.float64)
