"""Which batches a run was made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel


@dataclass(slots=True)
class Recorder:
    """A latency model that keeps the shapes of the steps that it times."""

    model: LatencyModel
    shapes: list[BatchFeatures] = field(default_factory=list)

    def predict_ms(self, features: BatchFeatures) -> float:
        self.shapes.append(features)
        return self.model.predict_ms(features)

    def decode_cost_ms(self, features: BatchFeatures, context_len: int) -> float:
        return self.model.decode_cost_ms(features, context_len)

    def prefill_cost_ms(self, features: BatchFeatures, num_tokens: int, num_computed_tokens: int) -> float:
        return self.model.prefill_cost_ms(features, num_tokens, num_computed_tokens)

    def max_prefill_tokens(
        self, features: BatchFeatures, num_computed_tokens: int, budget_ms: float, limit: int
    ) -> int:
        return self.model.max_prefill_tokens(features, num_computed_tokens, budget_ms, limit)
