"""What a schedule asks of a latency model."""

from __future__ import annotations

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
        the latency part of get_max_prefill, HyGen Alg. 1 line 15."""
