"""The boosted model: a step as a sum of curves, each of one sum of the batch.

A step is a sum of operators, and each takes a time that is some curve of one sum: the matrices of all tokens, the
output projection of the requests, attention of the pairs or of the KV tokens read. Where the fit finds the curves:
``services.predictor.boosted_fit``; here they are only evaluated.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shared.latency.features import BatchFeatures, attention_pairs
from shared.latency.model import LatencyModel, require_sound

MAX_TABLE = 1 << 16  # entries; sums beyond it are looked up by bisection


class Sum(enum.StrEnum):
    """What a curve is a function of."""

    TOKENS = "tokens"  # S_p + N_d: all that the step computes
    REQUESTS = "requests"  # N_p + N_d: rows of the output projection
    PREFILL_PAIRS = "prefill_pairs"
    DECODE_KV_TOKENS = "decode_kv_tokens"
    PREFILL_REQUESTS = "prefill_requests"
    DECODE_REQUESTS = "decode_requests"


def sums_of(features: BatchFeatures) -> tuple[int, int, int, int, int, int]:
    """In the order of ``Sum``."""
    n_p, n_d = features.prefill_requests, features.decode_requests
    return (features.prefill_tokens + n_d, n_p + n_d, features.prefill_pairs, features.decode_kv_tokens, n_p, n_d)


@dataclass(frozen=True)
class Curve:
    """Piecewise linear, 0 at 0 and never falling. ``slopes[i]``, milliseconds per unit, holds from ``knots[i]`` to the
    next knot, the last one for ever. Raises ValueError for anything else."""

    knots: tuple[int, ...] = (0,)  # ascending, from 0
    slopes: tuple[float, ...] = (0.0,)
    _values: tuple[float, ...] = field(init=False, repr=False, compare=False)  # at the knots

    def __post_init__(self) -> None:
        if len(self.knots) != len(self.slopes) or self.knots[:1] != (0,):
            raise ValueError("a curve has one slope for each knot, and its first knot is 0")
        if any(knot >= following for knot, following in zip(self.knots, self.knots[1:], strict=False)):
            raise ValueError("the knots of a curve ascend")
        if not all(math.isfinite(slope) and slope >= 0 for slope in self.slopes):
            raise ValueError("the slopes of a curve are finite and not negative")
        values = [0.0]
        for index, knot in enumerate(self.knots[1:]):
            values.append(values[-1] + self.slopes[index] * (knot - self.knots[index]))
        object.__setattr__(self, "_values", tuple(values))

    def at(self, value: int) -> float:
        index = bisect_right(self.knots, value) - 1
        return self._values[index] + self.slopes[index] * (value - self.knots[index])

    def rise(self, start: int, end: int) -> float:
        """at(end) - at(start), with all digits where both lie between the same knots."""
        index = bisect_right(self.knots, start)
        if index == len(self.knots) or end <= self.knots[index]:
            return self.slopes[index - 1] * (end - start)
        return self.at(end) - self.at(start)

    def steps(self) -> list[float]:
        """at(n + 1) - at(n) up to the last knot, whose entry holds beyond. Raises ValueError where it is too long."""
        if self.knots[-1] >= MAX_TABLE:
            raise ValueError(f"a curve of a count ends before {MAX_TABLE}")
        ends = (*self.knots[1:], self.knots[-1] + 1)
        lengths = (end - knot for knot, end in zip(self.knots, ends, strict=True))
        return [slope for slope, length in zip(self.slopes, lengths, strict=True) for _ in range(length)]


FLAT = Curve()


@dataclass(frozen=True)
class BoostedLatencyModel(LatencyModel):
    """T = base + the sum of the curves, in milliseconds. A sum without a curve does not matter.

    Raises ValueError for a base that is negative or not finite.
    """

    base: float
    curves: Mapping[Sum, Curve]
    _token_steps: list[float] = field(init=False, repr=False, compare=False)
    _request_steps: list[float] = field(init=False, repr=False, compare=False)
    _decode_steps: list[float] = field(init=False, repr=False, compare=False)
    _kv: Curve = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_sound([("base", self.base)])
        tables = {"_token_steps": Sum.TOKENS, "_request_steps": Sum.REQUESTS, "_decode_steps": Sum.DECODE_REQUESTS}
        for name, of in tables.items():
            object.__setattr__(self, name, self.curves.get(of, FLAT).steps())
        object.__setattr__(self, "_kv", self.curves.get(Sum.DECODE_KV_TOKENS, FLAT))

    def predict_ms(self, features: BatchFeatures) -> float:
        if features.is_empty:
            return 0.0
        values = dict(zip(Sum, sums_of(features), strict=True))
        return self.base + sum(curve.at(values[of]) for of, curve in self.curves.items())

    def decode_cost_ms(self, features: BatchFeatures, context_len: int) -> float:
        """Asked once for each running request and plan: three tables and one curve."""
        s_d, n_d = features.decode_kv_tokens, features.decode_requests
        tokens, requests = features.prefill_tokens + n_d, features.prefill_requests + n_d
        of_tokens, of_requests, of_decodes = self._token_steps, self._request_steps, self._decode_steps
        cost = self._kv.rise(s_d, s_d + context_len)
        cost += of_tokens[tokens] if tokens < len(of_tokens) else of_tokens[-1]
        cost += of_requests[requests] if requests < len(of_requests) else of_requests[-1]
        cost += of_decodes[n_d] if n_d < len(of_decodes) else of_decodes[-1]
        return cost if requests else cost + self.base

    def prefill_cost_ms(self, features: BatchFeatures, num_tokens: int, num_computed_tokens: int) -> float:
        n_p, n_d, pairs = features.prefill_requests, features.decode_requests, features.prefill_pairs
        tokens, requests = features.prefill_tokens + n_d, n_p + n_d
        curves = self.curves
        cost = curves.get(Sum.TOKENS, FLAT).rise(tokens, tokens + num_tokens)
        cost += curves.get(Sum.PREFILL_PAIRS, FLAT).rise(
            pairs, pairs + attention_pairs(num_tokens, num_computed_tokens)
        )
        cost += curves.get(Sum.REQUESTS, FLAT).rise(requests, requests + 1)
        cost += curves.get(Sum.PREFILL_REQUESTS, FLAT).rise(n_p, n_p + 1)
        return cost if requests else cost + self.base

    def scaled(self, factor: float) -> BoostedLatencyModel:
        """The same batches, each ``factor`` times as long."""
        curves = {
            of: replace(curve, slopes=tuple(slope * factor for slope in curve.slopes))
            for of, curve in self.curves.items()
        }
        return BoostedLatencyModel(self.base * factor, curves)
