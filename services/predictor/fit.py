"""Fit Eq. 1 of HyGen (section 4.2), with the prefill pairs, to timed batches. Pure: numbers in, coefficients out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from services.predictor.window import Observation, Stratum, stratum
from shared.latency.linear import NUM_COEFFICIENTS, Coefficients

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]

HOLD_OUT_EVERY = 5
OUTLIER_SIGMAS = 4.0
SIGMA_PER_MAD = 1.4826  # of a normal distribution
MIN_OUTLIER_ERROR = 0.05  # a relative error below this is no outlier, however regular the others are
PRIOR_WEIGHT = 1e-4  # of the data's: decides only what the data leave open
MAX_ITERATIONS = 1000

BETTER_MAPE = 0.005
MAX_BIAS = 0.03  # of a published model's total over recent samples; their noise alone makes about 1%
CALIBRATION_LIMITS = (0.5, 2.0)  # beyond it is not drift: something else is wrong
DIFFERENT_PREDICTION = 0.05
DIFFERENT_QUANTILE = 0.9


@dataclass(frozen=True, slots=True)
class LinearFit:
    """Coefficients of Eq. 1 in milliseconds, none negative, and how well they predict samples that they never saw."""

    coefficients: Coefficients
    num_samples: int
    mape: float  # mean absolute percentage error on every fifth sample, fitted without those; 0 to 1


def fit_linear(observations: Sequence[Observation], prior: Coefficients | None = None) -> LinearFit | None:
    """Non-negative least squares on relative errors, once more without the outliers.

    ``prior`` (an earlier fit) settles what the observations leave open, such as the cost of prefills where only
    decodes were seen. Without a prior the observations must tell prefills and decodes alike: None where they have
    fewer distinct shapes than Eq. 1 has coefficients, or lack one of the two kinds.
    """
    if prior is None and not _covers_both_kinds(observations):
        return None
    train, held_out = _split(observations)
    try:
        mape = mean_relative_error(_fit_trimmed(train, prior), held_out)
        coefficients = _fit_trimmed(observations, prior)
    except RuntimeError as error:  # how nnls says that it did not converge
        logger.warning("fit did not converge", extra={"num_samples": len(observations), "error": str(error)})
        return None
    return LinearFit(_as_coefficients(coefficients), len(observations), mape)


def calibrated(fitted: LinearFit, recent: Sequence[Observation]) -> LinearFit:
    """Scaled so that the total over ``recent`` samples is right: all shapes in the window count alike in a fit, but a
    schedule is made for the machine as it is now and for the shapes that run now."""
    low, high = CALIBRATION_LIMITS
    scale = min(max(bias(fitted.coefficients, recent), low), high)
    return LinearFit(_as_coefficients(np.asarray(fitted.coefficients) * scale), fitted.num_samples, fitted.mape)


def bias(coefficients: Coefficients, recent: Sequence[Observation]) -> float:
    """Measured over predicted time, in total; 1 where there is nothing to compare."""
    if not recent:
        return 1.0
    rows, latencies, _ = _design(recent)
    predicted = float((rows @ np.asarray(coefficients)).sum())
    return float(latencies.sum()) / predicted if predicted > 0 else 1.0


def is_material(
    fitted: LinearFit, published: Coefficients, observations: Sequence[Observation], recent: Sequence[Observation] = ()
) -> bool:
    """Whether ``fitted`` is worth a new version: what is published is off in total over ``recent`` samples, by 3%; or
    ``fitted`` predicts held-out samples better, by half a percentage point; or no worse and a tenth of the samples
    differently, by 5%."""
    if abs(bias(published, recent) - 1.0) > MAX_BIAS:
        return True
    _, held_out = _split(observations)
    published_mape = mean_relative_error(published, held_out)
    if published_mape - fitted.mape >= BETTER_MAPE:
        return True
    if fitted.mape > published_mape:
        return False
    rows, _, _ = _design(observations)
    old, new = rows @ np.asarray(published), rows @ np.asarray(fitted.coefficients)
    change = np.abs(new - old) / np.maximum(np.maximum(old, new), np.finfo(np.float64).tiny)
    return float(np.quantile(change, DIFFERENT_QUANTILE)) >= DIFFERENT_PREDICTION


def mean_relative_error(coefficients: Coefficients | Array, observations: Sequence[Observation]) -> float:
    """Weighted mean of |predicted - measured| / measured."""
    rows, latencies, weights = _design(observations)
    return float(np.average(np.abs(rows @ np.asarray(coefficients) / latencies - 1.0), weights=weights))


def _covers_both_kinds(observations: Sequence[Observation]) -> bool:
    shapes = {observation.shape for observation in observations}
    has_prefill = any(shape.prefill_requests for shape in shapes)
    has_decode = any(shape.decode_requests for shape in shapes)
    return len(shapes) >= NUM_COEFFICIENTS and has_prefill and has_decode


def _split(observations: Sequence[Observation]) -> tuple[list[Observation], list[Observation]]:
    """Train and held-out; one observation alone is both."""
    if len(observations) < HOLD_OUT_EVERY:
        return list(observations), list(observations)
    train = [o for n, o in enumerate(observations, start=1) if n % HOLD_OUT_EVERY]
    return train, list(observations[HOLD_OUT_EVERY - 1 :: HOLD_OUT_EVERY])


def _design(observations: Sequence[Observation]) -> tuple[Array, Array, Array]:
    """Regressors [n, 8] in the order of ``shared.latency.linear.feature_row``, latencies [n] in milliseconds, and
    weights [n]."""
    sums = np.array([msgspec.structs.astuple(observation.shape) for observation in observations], dtype=np.float64)
    s_p, n_p, s_d, n_d, pairs = sums.T  # in the order of BatchShape's fields
    rows = np.stack([np.ones_like(s_p), s_p, s_d, s_p * s_p, s_d * s_d, n_p, n_d, pairs], axis=1)
    timed = np.array([(observation.latency_ms, observation.weight) for observation in observations], dtype=np.float64)
    return rows, timed[:, 0], timed[:, 1]


def _fit_trimmed(observations: Sequence[Observation], prior: Coefficients | None) -> Array:
    rows, latencies, weights = _design(observations)
    relative = rows / latencies[:, None]
    first = _solve(relative, weights, prior)
    outliers = _outliers(relative @ first - 1.0, [stratum(observation.shape) for observation in observations])
    return _solve(relative[~outliers], weights[~outliers], prior) if outliers.any() else first


def _solve(relative: Array, weights: Array, prior: Coefficients | None) -> Array:
    """Non-negative x for relative @ x = 1 in the weighted least-squares sense; relative: [n, 8], weights: [n]."""
    target = np.sqrt(weights)
    matrix = relative * target[:, None]
    scale = np.sqrt(np.mean(matrix**2, axis=0))
    scale[scale == 0] = 1.0  # a regressor that no sample has: without a prior its coefficient becomes 0
    matrix = matrix / scale
    if prior is not None:
        pull = np.sqrt(PRIOR_WEIGHT * len(matrix))
        matrix = np.vstack([matrix, pull * np.eye(NUM_COEFFICIENTS)])
        target = np.concatenate([target, pull * scale * np.asarray(prior)])
    solution, _ = nnls(matrix, target, maxiter=MAX_ITERATIONS)
    return np.asarray(solution / scale, dtype=np.float64)


def _outliers(errors: Array, strata: list[Stratum]) -> NDArray[np.bool_]:
    """Samples [n] far outside the spread of the errors, and in the worse half of their own stratum: where all
    samples of a kind are off, the model is wrong about that kind, not the samples."""
    center = float(np.median(errors))
    deviation = np.abs(errors - center)
    cut = max(OUTLIER_SIGMAS * SIGMA_PER_MAD * float(np.median(deviation)), MIN_OUTLIER_ERROR)
    members: dict[Stratum, list[int]] = {}
    for index, key in enumerate(strata):
        members.setdefault(key, []).append(index)
    outliers = np.zeros(len(errors), dtype=np.bool_)
    for indices in members.values():
        ranked = sorted(indices, key=lambda index: (deviation[index], index))
        worse = ranked[(len(ranked) + 1) // 2 :]
        outliers[worse] = deviation[worse] > cut
    return outliers


def _as_coefficients(solution: Array) -> Coefficients:
    base, prefill, kv, prefill_square, kv_square, prefill_request, decode_request, pair = map(float, solution)
    return (base, prefill, kv, prefill_square, kv_square, prefill_request, decode_request, pair)
