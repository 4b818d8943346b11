"""Non-negative least squares on relative errors, for models that are linear in their coefficients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from services.predictor.window import Observation, Stratum, stratum
from shared.latency.features import BatchFeatures

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]

OUTLIER_SIGMAS = 4.0
SIGMA_PER_MAD = 1.4826  # of a normal distribution
MIN_OUTLIER_ERROR = 0.05  # a relative error below this is no outlier, however regular the others are
MAX_ITERATIONS = 1000


@dataclass(frozen=True, slots=True)
class Samples:
    """What was measured, as columns."""

    latencies: Array  # [n], milliseconds
    weights: Array  # [n]
    strata: NDArray[np.intp]  # [n], numbered from 0

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> Samples:
        timed = np.array([(each.latency_ms, each.weight) for each in observations], dtype=np.float64)
        numbers: dict[Stratum, int] = {}
        strata = [numbers.setdefault(stratum(observation.shape), len(numbers)) for observation in observations]
        return cls(timed[:, 0], timed[:, 1], np.array(strata, dtype=np.intp))


def rows_of(observations: Sequence[Observation], row: Callable[[BatchFeatures], Sequence[float]]) -> Array:
    """[n, k]: the ``row`` of each batch."""
    return np.array([row(observation.shape) for observation in observations], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What coefficients x [k] should be like besides fitting the samples: rows @ x near targets, in units of one
    sample's relative error."""

    rows: Array  # [m, k]
    targets: Array  # [m]


def solve_trimmed(rows: Array, samples: Samples, wishes: Wishes | None = None) -> Array | None:
    """Non-negative coefficients [k] of ``rows`` [n, k], fitted once more without the outliers. What neither samples nor
    wishes decide becomes 0. None, with a word in the log, where the solver does not converge."""
    relative = rows / samples.latencies[:, None]
    try:
        first = _solve(relative, samples.weights, wishes)
        outliers = _outliers(relative @ first - 1.0, samples.strata)
        return _solve(relative[~outliers], samples.weights[~outliers], wishes) if outliers.any() else first
    except RuntimeError as error:  # how nnls says that it did not converge
        logger.warning("fit did not converge", extra={"shape": rows.shape, "error": str(error)})
        return None


def _solve(relative: Array, weights: Array, wishes: Wishes | None) -> Array:
    """Non-negative x for relative @ x = 1 in the weighted least-squares sense; relative: [n, k], weights: [n]."""
    target = np.sqrt(weights)
    matrix = relative * target[:, None]
    if wishes is not None:
        matrix = np.vstack([matrix, wishes.rows])
        target = np.concatenate([target, wishes.targets])
    scale = np.sqrt(np.mean(matrix**2, axis=0))
    scale[scale == 0] = 1.0  # a regressor that no sample has
    # loaded here: it takes half a second, and a predictor that has been given its model may never fit one
    solution, _ = scipy.optimize.nnls(matrix / scale, target, maxiter=MAX_ITERATIONS)
    return np.asarray(solution / scale, dtype=np.float64)


def _outliers(errors: Array, strata: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Samples [n] far outside the spread of the errors, and in the worse half of their own stratum: where all
    samples of a kind are off, the model is wrong about that kind, not the samples."""
    deviation = np.abs(errors - np.median(errors))
    cut = max(OUTLIER_SIGMAS * SIGMA_PER_MAD * float(np.median(deviation)), MIN_OUTLIER_ERROR)
    ranked = np.lexsort((deviation, strata))  # stratum by stratum, of equal deviations the earlier sample first
    sizes = np.bincount(strata)
    ranks = np.arange(len(errors)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_worse = np.empty(len(errors), dtype=np.bool_)
    is_worse[ranked] = ranks >= np.repeat((sizes + 1) // 2, sizes)
    return is_worse & (deviation > cut)
