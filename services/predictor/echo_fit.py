"""Fit Echo's execution time model (section 5.2, Eq. 6 to 8) to timed batches.

The paper measures prompts alone, decodes alone and both, and fits one after the other. Live batches mostly have both,
so all is fitted together. With alpha, beta, c, gamma and delta as times of a phase alone, a step takes
longer + overlap * shorter, where overlap = (1 - lambda) / lambda is between 0 and 1. As long as it is known in which
batches the prefills take the longer part, and which have less than c, that is linear in the five; and where these are
known, overlap is the solution of a line. So both are solved in turns, each by what the other found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.predictor.regression import Array, Samples, rows_of, solve_trimmed
from services.predictor.window import Observation, covers_both_kinds
from shared.latency.echo import EchoLatencyModel, prefill_squares
from shared.latency.features import BatchFeatures

NUM_COEFFICIENTS = 6
MAX_TURNS = 12
LEAST_GAIN = 1e-4  # of the mean relative error, for one more turn
LEAST_QUANTILES = (0.0, 0.25, 0.5, 0.75)  # of prefill tokens: up to where c is taken to hold at first

Mask = NDArray[np.bool_]


def fit_echo(observations: Sequence[Observation]) -> EchoLatencyModel | None:
    """The best of several beginnings, by mean relative error. None where the observations have fewer distinct shapes
    than the model has coefficients or lack prefills or decodes, and where the solver does not converge."""
    if not covers_both_kinds(observations, NUM_COEFFICIENTS):
        return None
    batches = _Batches(rows_of(observations, _row), Samples.of(observations))
    lengths = batches.prefills[batches.has_prefill, 1]
    best: _Found | None = None
    for quantile in LEAST_QUANTILES:
        limit = float(np.quantile(lengths, quantile)) if quantile else 0.0
        for found in _turns(batches, batches.prefills[:, 1] <= limit):
            if best is None or found.error < best.error:
                best = found
    return None if best is None else best.model()


def _row(shape: BatchFeatures) -> Sequence[float]:
    """l^2, l, whether there are prefills; max(L), mean(L), whether there are decodes."""
    mean = shape.decode_kv_tokens / max(shape.decode_requests, 1)
    squares = prefill_squares(shape.prefill_tokens, shape.prefill_pairs)
    prefills = (squares, shape.prefill_tokens, float(shape.prefill_requests > 0))
    return (*prefills, max(shape.longest_decode, mean), mean, float(shape.decode_requests > 0))


class _Batches:
    """What was measured, as columns."""

    def __init__(self, rows: Array, samples: Samples) -> None:
        self.prefills = rows[:, :3]  # of alpha, beta, c
        self.decodes = rows[:, 3:5]  # of gamma, delta
        self.has_prefill: Mask = rows[:, 2] > 0
        self.has_decode: Mask = rows[:, 5] > 0
        self.samples = samples

    def error(self, predicted: Array) -> float:
        """Weighted mean of |predicted - measured| / measured."""
        return float(np.average(np.abs(predicted / self.samples.latencies - 1.0), weights=self.samples.weights))


@dataclass(frozen=True, slots=True)
class _Found:
    """``times``: alpha, beta, c, gamma and delta of a phase alone."""

    times: Array  # [5]
    overlap: float
    error: float

    def model(self) -> EchoLatencyModel:
        alpha, beta, least, gamma, delta = map(float, self.times * (1.0 + self.overlap))
        return EchoLatencyModel(alpha, beta, least, gamma, delta, 1.0 / (1.0 + self.overlap))


def _turns(batches: _Batches, has_least: Mask) -> Iterator[_Found]:
    """From a sum of both phases on, until it gets no better. ``has_least`` [n]: whose prefills take c."""
    overlap, prefill_is_longer = 1.0, batches.has_prefill
    before = np.inf
    for _ in range(MAX_TURNS):
        times = _solve_times(batches, overlap, prefill_is_longer, has_least)
        if times is None:
            return
        linear_ms = batches.prefills[:, :2] @ times[:2]
        least_ms = times[2] * batches.has_prefill
        prefill_ms, decode_ms = np.maximum(linear_ms, least_ms), batches.decodes @ times[3:]
        longer_ms, shorter_ms = np.maximum(prefill_ms, decode_ms), np.minimum(prefill_ms, decode_ms)
        overlap = _solve_overlap(batches, longer_ms, shorter_ms)
        found = _Found(times, overlap, batches.error(longer_ms + overlap * shorter_ms))
        yield found
        if found.error > before - LEAST_GAIN:
            return
        before, has_least = found.error, linear_ms < least_ms
        prefill_is_longer = (prefill_ms > decode_ms) | ~batches.has_decode


def _solve_times(batches: _Batches, overlap: float, prefill_is_longer: Mask, has_least: Mask) -> Array | None:
    of_prefills = np.where(prefill_is_longer, 1.0, overlap)
    of_decodes = np.where(prefill_is_longer, overlap, 1.0)
    is_linear = ~has_least[:, None]
    prefills = np.where([True, True, False], batches.prefills * is_linear, batches.prefills * has_least[:, None])
    rows = np.hstack([prefills * of_prefills[:, None], batches.decodes * of_decodes[:, None]])
    return solve_trimmed(rows, batches.samples)


def _solve_overlap(batches: _Batches, longer_ms: Array, shorter_ms: Array) -> float:
    """The share of the shorter phase that steps with both take beside the longer, by least squares on relative errors;
    1 where no step has both."""
    latencies, weights = batches.samples.latencies, batches.samples.weights
    slope, left = shorter_ms / latencies, 1.0 - longer_ms / latencies
    total = float(np.sum(weights * slope * slope))
    return min(max(float(np.sum(weights * slope * left)) / total, 0.0), 1.0) if total > 0 else 1.0
