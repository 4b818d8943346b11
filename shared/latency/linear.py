"""The linear model of HyGen's Eq. 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import mul

from shared.latency.features import BatchFeatures, attention_pairs
from shared.latency.model import longest_chunk, require_sound

Coefficients = tuple[float, float, float, float, float, float, float, float]

NUM_COEFFICIENTS = 8
MAX_ROOT = 2.0**52  # still an exact integer; no request is as long


def feature_row(features: BatchFeatures) -> Coefficients:
    """1, S_p, S_d, S_p^2, S_d^2, N_p, N_d and the pairs: the regressors, in the order of the coefficients."""
    s_p, s_d = float(features.prefill_tokens), float(features.decode_kv_tokens)
    n_p, n_d = float(features.prefill_requests), float(features.decode_requests)
    return (1.0, s_p, s_d, s_p * s_p, s_d * s_d, n_p, n_d, float(features.prefill_pairs))


@dataclass(frozen=True, slots=True)
class LinearLatencyModel:
    """T = base + prefill_token S_p + kv_token S_d + prefill_square S_p^2 + kv_square S_d^2
    + prefill_request N_p + decode_request N_d + prefill_pair P, all in milliseconds and not negative (so that T is
    monotone).

    The last term is not in Eq. 1: P counts the query-key pairs of prefill attention, without which a chunk late in
    a long prompt would seem to take as long as the first. Where it is 0 the model is the paper's.

    Raises ValueError for a negative or non-finite coefficient.
    """

    base: float
    prefill_token: float
    kv_token: float
    prefill_square: float
    kv_square: float
    prefill_request: float
    decode_request: float
    prefill_pair: float = 0.0

    def __post_init__(self) -> None:
        require_sound((name, getattr(self, name)) for name in self.__slots__)

    def coefficients(self) -> Coefficients:
        """In the order of ``feature_row``."""
        sums = (self.prefill_token, self.kv_token, self.prefill_square, self.kv_square)
        return (self.base, *sums, self.prefill_request, self.decode_request, self.prefill_pair)

    def predict_ms(self, features: BatchFeatures) -> float:
        if features.is_empty:
            return 0.0
        latency_ms: float = sum(map(mul, self.coefficients(), feature_row(features)))
        return latency_ms

    def decode_cost_ms(self, features: BatchFeatures, context_len: int) -> float:
        s_d = features.decode_kv_tokens
        cost = self.decode_request + context_len * (self.kv_token + self.kv_square * (2 * s_d + context_len))
        return cost + self.base if features.is_empty else cost

    def prefill_cost_ms(self, features: BatchFeatures, num_tokens: int, num_computed_tokens: int) -> float:
        s_p = features.prefill_tokens
        cost = self.prefill_request + num_tokens * (self.prefill_token + self.prefill_square * (2 * s_p + num_tokens))
        cost += self.prefill_pair * attention_pairs(num_tokens, num_computed_tokens)
        return cost + self.base if features.is_empty else cost

    def max_prefill_tokens(
        self, features: BatchFeatures, num_computed_tokens: int, budget_ms: float, limit: int
    ) -> int:
        """O(1): the root of the quadratic cost, checked against ``prefill_cost_ms``, whose word is final."""

        def cost_ms(num_tokens: int) -> float:
            return self.prefill_cost_ms(features, num_tokens, num_computed_tokens)

        if limit <= 0 or cost_ms(1) > budget_ms:
            return 0
        if cost_ms(limit) <= budget_ms:
            return limit
        root = min(int(self._prefill_root(features, num_computed_tokens, budget_ms)), limit)
        for tokens in (root, root - 1, root + 1):
            if cost_ms(tokens) <= budget_ms < cost_ms(tokens + 1):
                return tokens
        # Coefficients so far apart in size that the root lost its digits: ask the cost itself.
        return longest_chunk(cost_ms, budget_ms, limit)

    def scaled(self, factor: float) -> LinearLatencyModel:
        """The same batches, each ``factor`` times as long."""
        return LinearLatencyModel(*(coefficient * factor for coefficient in self.coefficients()))

    def _prefill_root(self, features: BatchFeatures, num_computed_tokens: int, budget_ms: float) -> float:
        """The n >= 0 at which square n^2 + slope n meets what the fixed costs leave of the budget; a chunk's pairs
        are n^2 / 2 + (num_computed_tokens + 1/2) n."""
        left = max(budget_ms - self.prefill_request - (self.base if features.is_empty else 0.0), 0.0)
        square = self.prefill_square + self.prefill_pair / 2
        slope = self.prefill_token + 2 * self.prefill_square * features.prefill_tokens
        slope += self.prefill_pair * (num_computed_tokens + 0.5)
        # 2c / (b + sqrt(b^2 + 4ac)) keeps its digits where the square term is tiny, and holds where it is 0.
        denominator = slope + math.sqrt(slope * slope + 4 * square * left)
        return min(2 * left / denominator, MAX_ROOT) if denominator > 0 else 0.0
