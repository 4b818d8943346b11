"""Fit the models that are linear in their coefficients to timed batches: Eq. 1 of HyGen (section 4.2) with the prefill
pairs, and BROS's cost model (section 4.1)."""

from collections.abc import Sequence

import numpy as np

from services.predictor.regression import Array, Samples, Wishes, rows_of, solve_trimmed
from services.predictor.window import Observation, covers_both_kinds
from shared.latency.bros import BrosLatencyModel
from shared.latency.linear import NUM_COEFFICIENTS, Coefficients, LinearLatencyModel, feature_row

NUM_BROS_COEFFICIENTS = 6
PRIOR_WEIGHT = 1e-4  # of the data's: decides only what the data leave open


def fit_linear(observations: Sequence[Observation], prior: Coefficients | None = None) -> LinearLatencyModel | None:
    """Non-negative least squares on relative errors, once more without the outliers.

    ``prior`` (an earlier fit) settles what the observations leave open, such as the cost of prefills where only
    decodes were seen. Without a prior the observations must tell prefills and decodes alike: None where they have
    fewer distinct shapes than the model has coefficients, or lack one of the two kinds.
    """
    if prior is None and not covers_both_kinds(observations, NUM_COEFFICIENTS):
        return None
    samples = Samples.of(observations)
    rows = rows_of(observations, feature_row)
    solution = solve_trimmed(rows, samples, None if prior is None else _near(prior, rows, samples))
    return None if solution is None else LinearLatencyModel(*map(float, solution))


def fit_bros(observations: Sequence[Observation]) -> BrosLatencyModel | None:
    """As ``fit_linear`` without a prior; both phases are fitted together, since most batches have both."""
    if not covers_both_kinds(observations, NUM_BROS_COEFFICIENTS):
        return None
    s_p, n_p, s_d, n_d, pairs = rows_of(observations, lambda shape: shape.sums).T
    rows = np.stack([n_p > 0, s_p, pairs, n_d > 0, n_d, s_d], axis=1).astype(np.float64)
    solution = solve_trimmed(rows, Samples.of(observations))
    return None if solution is None else BrosLatencyModel(*map(float, solution))


def _near(prior: Coefficients, rows: Array, samples: Samples) -> Wishes:
    """A regressor that no sample has keeps its coefficient."""
    scale = np.sqrt(np.mean((rows / samples.latencies[:, None]) ** 2 * samples.weights[:, None], axis=0))
    scale[scale == 0] = 1.0
    pull = np.sqrt(PRIOR_WEIGHT * len(rows)) * scale
    return Wishes(np.diag(pull), pull * np.asarray(prior))
