"""Fit the rates of a device to timed batches (OOCO section 3.3.2): what its operators reach of computing and of memory,
and what a step takes besides.

A model's operators are known from its configuration. As long as it is known which of them are bound by computing in
which batches, a step's time is linear in the inverse rates and the overheads; and where these are known, so is what
binds an operator. So both are solved in turns, each by what the other found, from several beginnings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.predictor.regression import Array, Samples, rows_of, solve_trimmed
from services.predictor.window import Observation, covers_both_kinds
from shared.latency.architectures import Architecture
from shared.latency.device_rates import DeviceRates
from shared.latency.operators import OperatorSizes
from shared.latency.roofline import RooflineLatencyModel

NUM_RATES = 8
MAX_TURNS = 12
LEAST_GAIN = 1e-4  # of the mean relative error, for one more turn
CLEAR_GAIN = 5e-3  # and for decode attention that computes longer than it reads, which takes a rate of its own
SATURATED_QUANTILES = (0.5, 0.25, 0.75, 0.0, 1.0)  # of tokens: from where on GEMMs are bound by computing at first
JUST_FASTER = 1e-3  # than the slowest rate by which no batch would take longer
NEGLIGIBLE = 1e-6  # of the shortest step

Mask = NDArray[np.bool_]
# Columns: milliseconds of a FLOP or a byte, and the overheads.
GEMM_FLOPS, PREFILL_FLOPS, DECODE_FLOPS, GEMM_BYTES, ATTENTION_BYTES, PREFILL_MS, DECODE_MS, LINK_BYTES = range(8)


def fit_roofline(
    observations: Sequence[Observation], architecture: Architecture, tensor_parallel: int = 1
) -> RooflineLatencyModel | None:
    """By least squares on relative errors, once more without the outliers: the best of several beginnings, by mean
    relative error. None where the observations have fewer distinct shapes than there are rates or lack prefills or
    decodes, where the solver does not converge, and for heads that ``tensor_parallel`` devices cannot share.

    A resource that no batch waits for is only known to be fast enough for that: it gets the slowest such rate. Whether
    decodes compute or read their KV tokens makes no difference to their own time; they read unless the rest fits
    clearly better with another rate for that.
    """
    if not covers_both_kinds(observations, NUM_RATES):
        return None
    try:
        sizes = OperatorSizes.of(architecture, tensor_parallel)
    except ValueError:
        return None
    batches = _Batches.of(observations, sizes)
    reading, computing = (_best(batches, decodes_compute) for decodes_compute in (False, True))
    if reading is None or computing is None:
        return None
    best = computing if computing.error < reading.error - CLEAR_GAIN else reading
    return RooflineLatencyModel(
        architecture, _device_rates(batches.settled(best.costs), tensor_parallel), tensor_parallel
    )


def _device_rates(costs: Array, tensor_parallel: int) -> DeviceRates:
    """Of inverse ones."""
    return DeviceRates(
        gemm_flops_per_ms=1 / float(costs[GEMM_FLOPS]),
        prefill_attention_flops_per_ms=1 / float(costs[PREFILL_FLOPS]),
        decode_attention_flops_per_ms=1 / float(costs[DECODE_FLOPS]),
        gemm_bytes_per_ms=1 / float(costs[GEMM_BYTES]),
        attention_bytes_per_ms=1 / float(costs[ATTENTION_BYTES]),
        prefill_overhead_ms=float(costs[PREFILL_MS]),
        decode_overhead_ms=float(costs[DECODE_MS]),
        link_bytes_per_ms=1 / float(costs[LINK_BYTES]) if tensor_parallel > 1 else None,
    )


@dataclass(frozen=True, slots=True)
class _Operator:
    """``flops``, ``memory_bytes`` [n], and the columns of what a unit costs."""

    flops: Array
    memory_bytes: Array
    flops_column: int
    bytes_column: int

    def compute_ms(self, costs: Array) -> Array:
        return self.flops * float(costs[self.flops_column])

    def memory_ms(self, costs: Array) -> Array:
        return self.memory_bytes * float(costs[self.bytes_column])

    def latency_ms(self, costs: Array) -> Array:
        """Eq. 1."""
        return np.maximum(self.compute_ms(costs), self.memory_ms(costs))

    def most(self, column: int, costs: Array, least_ms: float) -> float:
        """What this column can cost without any batch taking longer, but for ``least_ms``; infinite where it is not
        this operator's."""
        work = {self.flops_column: self.flops, self.bytes_column: self.memory_bytes}.get(column, self.flops * 0)
        allowed_ms = np.maximum((1 - JUST_FASTER) * self.latency_ms(costs), least_ms)
        return float(np.min(allowed_ms[work > 0] / work[work > 0], initial=np.inf))


@dataclass(frozen=True, slots=True)
class _Bound:
    """What holds in each batch [n]."""

    by_compute: list[Mask]  # of each operator
    by_prefill: Mask  # the overhead is that of prefills

    @classmethod
    def at_first(cls, batches: _Batches, quantile: float, decodes_compute: bool) -> _Bound:
        none: Mask = np.zeros(len(batches.tokens), dtype=np.bool_)
        saturated = batches.tokens > np.quantile(batches.tokens, quantile)
        return cls([saturated, none, ~none, ~none if decodes_compute else none], batches.has_prefill)

    @classmethod
    def under(cls, batches: _Batches, costs: Array) -> _Bound:
        by_compute = [operator.compute_ms(costs) > operator.memory_ms(costs) for operator in batches.operators]
        longer = batches.has_prefill & (costs[PREFILL_MS] > costs[DECODE_MS])
        return cls(by_compute, longer | ~batches.has_decode)


@dataclass(frozen=True, slots=True)
class _Found:
    costs: Array  # [NUM_RATES]: milliseconds of a FLOP or a byte, and the overheads
    error: float


@dataclass(frozen=True, slots=True)
class _Batches:
    """What was measured, as columns [n]."""

    operators: list[_Operator]  # GEMMs of the layers, output projection, attention of prefills and of decodes
    link_bytes: Array
    tokens: Array
    has_prefill: Mask
    has_decode: Mask
    samples: Samples

    @classmethod
    def of(cls, observations: Sequence[Observation], sizes: OperatorSizes) -> _Batches:
        s_p, n_p, s_d, n_d, pairs = rows_of(observations, lambda shape: shape.sums).T
        tokens, requests = s_p + n_d, n_p + n_d
        weights, head = np.full(len(tokens), sizes.gemm_weight_bytes), np.full(len(tokens), sizes.head_weight_bytes)
        gemm_bytes = weights + tokens * sizes.gemm_bytes_per_token
        prefill_bytes, kv_bytes = s_p * sizes.prefill_bytes_per_token, s_d * sizes.kv_bytes
        operators = [
            _Operator(tokens * sizes.gemm_flops_per_token, gemm_bytes, GEMM_FLOPS, GEMM_BYTES),
            _Operator(requests * sizes.head_flops_per_request, head, GEMM_FLOPS, GEMM_BYTES),
            _Operator(pairs * sizes.flops_per_pair, prefill_bytes, PREFILL_FLOPS, ATTENTION_BYTES),
            _Operator(s_d * sizes.flops_per_pair, kv_bytes, DECODE_FLOPS, ATTENTION_BYTES),
        ]
        link_bytes = tokens * sizes.link_bytes_per_token
        return cls(operators, link_bytes, tokens, n_p > 0, n_d > 0, Samples.of(observations))

    def rows(self, bound: _Bound) -> Array:
        """[n, NUM_RATES]: what the costs are multiplied with."""
        rows = np.zeros((len(self.tokens), NUM_RATES))
        for operator, by_compute in zip(self.operators, bound.by_compute, strict=True):
            rows[:, operator.flops_column] += operator.flops * by_compute
            rows[:, operator.bytes_column] += operator.memory_bytes * ~by_compute
        rows[:, PREFILL_MS], rows[:, DECODE_MS] = bound.by_prefill, ~bound.by_prefill
        rows[:, LINK_BYTES] = self.link_bytes
        return rows

    def error(self, costs: Array) -> float:
        """Weighted mean of |predicted - measured| / measured."""
        bound = _Bound.under(self, costs)
        predicted = self.rows(bound) @ costs
        return float(np.average(np.abs(predicted / self.samples.latencies - 1.0), weights=self.samples.weights))

    def settled(self, costs: Array) -> Array:
        """None of them 0: a resource that no batch waits for is as slow as it can be."""
        settled = costs.copy()
        least_ms = NEGLIGIBLE * float(self.samples.latencies.min())
        for column in (GEMM_FLOPS, PREFILL_FLOPS, DECODE_FLOPS, GEMM_BYTES, ATTENTION_BYTES):
            if costs[column] == 0:
                settled[column] = min(operator.most(column, costs, least_ms) for operator in self.operators)
        if self.link_bytes.any():
            settled[LINK_BYTES] = max(costs[LINK_BYTES], least_ms / float(self.link_bytes.max()))
        return settled


def _best(batches: _Batches, decodes_compute: bool) -> _Found | None:
    """None where the solver does not converge."""
    found = [
        each
        for quantile in SATURATED_QUANTILES
        for each in _turns(batches, _Bound.at_first(batches, quantile, decodes_compute))
    ]
    return min(found, key=lambda each: each.error, default=None)


def _turns(batches: _Batches, bound: _Bound) -> Iterator[_Found]:
    """Until it gets no better."""
    before = np.inf
    for _ in range(MAX_TURNS):
        costs = solve_trimmed(batches.rows(bound), batches.samples)
        if costs is None:
            return
        found = _Found(costs, batches.error(costs))
        yield found
        if found.error > before - LEAST_GAIN:
            return
        before, bound = found.error, _Bound.under(batches, costs)
