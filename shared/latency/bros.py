"""BROS's cost model (section 4.1): a line for each phase."""

from __future__ import annotations

from dataclasses import dataclass

from shared.latency.features import BatchFeatures, attention_pairs
from shared.latency.model import LatencyModel, require_sound

BrosCoefficients = tuple[float, float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class BrosLatencyModel(LatencyModel):
    """T = alpha0 L^n + alpha1 L^n L^a + beta for the prefills of a batch, and the same for its decodes, summed; a phase
    that the batch does not have takes no time. In milliseconds and not negative.

    L^n is a phase's number of tokens: S_p, N_d. L^n L^a, the size of the attention scores, is summed request by
    request: the prefill pairs (the paper has L^a = L^n, since its prefills come in one piece) and, a decode's L^n being
    1, S_d. A product of the two sums would charge each request for the contexts of all others.

    Raises ValueError for a negative or non-finite coefficient.
    """

    prefill_base: float
    prefill_token: float
    prefill_pair: float
    decode_base: float
    decode_token: float
    kv_token: float

    def __post_init__(self) -> None:
        require_sound((name, getattr(self, name)) for name in self.__dataclass_fields__)

    def coefficients(self) -> BrosCoefficients:
        """beta, alpha0 and alpha1 of the prefills, then of the decodes."""
        prefills = (self.prefill_base, self.prefill_token, self.prefill_pair)
        return (*prefills, self.decode_base, self.decode_token, self.kv_token)

    def predict_ms(self, features: BatchFeatures) -> float:
        latency_ms = 0.0
        if features.prefill_requests:
            latency_ms += self.prefill_base + self.prefill_token * features.prefill_tokens
            latency_ms += self.prefill_pair * features.prefill_pairs
        if features.decode_requests:
            latency_ms += self.decode_base + self.decode_token * features.decode_requests
            latency_ms += self.kv_token * features.decode_kv_tokens
        return latency_ms

    def decode_cost_ms(self, features: BatchFeatures, context_len: int) -> float:
        cost_ms = self.decode_token + self.kv_token * context_len
        return cost_ms if features.decode_requests else cost_ms + self.decode_base

    def prefill_cost_ms(self, features: BatchFeatures, num_tokens: int, num_computed_tokens: int) -> float:
        cost_ms = self.prefill_token * num_tokens
        cost_ms += self.prefill_pair * attention_pairs(num_tokens, num_computed_tokens)
        return cost_ms if features.prefill_requests else cost_ms + self.prefill_base

    def scaled(self, factor: float) -> BrosLatencyModel:
        """The same batches, each ``factor`` times as long."""
        return BrosLatencyModel(*(coefficient * factor for coefficient in self.coefficients()))
