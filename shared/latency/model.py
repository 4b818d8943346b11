"""What a schedule asks of a latency model, and what any model answers."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Protocol

from shared.latency.features import BatchFeatures


class LatencyModel(Protocol):
    """Milliseconds of a step. Every method is monotone: more work never takes less time."""

    def predict_ms(self, features: BatchFeatures) -> float:
        """The whole batch's time; 0 for an empty batch."""

    def decode_cost_ms(self, features: BatchFeatures, context_len: int) -> float:
        """T(batch with this decode) - T(batch): HyGen Alg. 1 line 7, as a marginal time."""

    def prefill_cost_ms(self, features: BatchFeatures, num_tokens: int, num_computed_tokens: int) -> float:
        """T(batch with this chunk) - T(batch). The chunk attends to ``num_computed_tokens`` earlier tokens."""

    def max_prefill_tokens(
        self, features: BatchFeatures, num_computed_tokens: int, budget_ms: float, limit: int
    ) -> int:
        """The longest chunk, at most ``limit`` tokens, whose marginal cost is within ``budget_ms``; 0 if none:
        the latency part of get_max_prefill, HyGen Alg. 1 line 15. By bisection where a model knows no shorter way."""
        return longest_chunk(lambda n: self.prefill_cost_ms(features, n, num_computed_tokens), budget_ms, limit)


def added_ms(model: LatencyModel, features: BatchFeatures, num_tokens: int, num_computed_tokens: int) -> float:
    """What ``BatchFeatures.add_scheduled`` adds to the batch's time: one token over KV that is there is a decode."""
    if num_tokens == 1 and num_computed_tokens > 0:
        return model.decode_cost_ms(features, num_computed_tokens + 1)
    return model.prefill_cost_ms(features, num_tokens, num_computed_tokens)


def cheapest_step_ms(model: LatencyModel) -> float:
    """Of a prompt of one token, alone: no request begins in less."""
    features = BatchFeatures()
    features.add_prefill(1, 0)
    return model.predict_ms(features)


def longest_chunk(cost_ms: Callable[[int], float], budget_ms: float, limit: int) -> int:
    """The most tokens, at most ``limit``, whose ``cost_ms`` is within ``budget_ms``; 0 if none. It never falls."""
    if limit <= 0 or cost_ms(limit) <= budget_ms:
        return max(limit, 0)
    return bisect_right(range(1, limit + 1), budget_ms, key=cost_ms)


def require_sound(coefficients: Iterable[tuple[str, float]]) -> None:
    """Of names and values. Raises ValueError for one with which no model is monotone: negative, or not finite."""
    for name, value in coefficients:
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"coefficient {name} is {value}; it must be finite and not negative")
