"""Echo's execution time model (section 5.2, Eq. 6 to 8)."""

from __future__ import annotations

from dataclasses import dataclass

from shared.latency.features import BatchFeatures, attention_pairs
from shared.latency.model import LatencyModel, require_sound

EchoCoefficients = tuple[float, float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class EchoLatencyModel(LatencyModel):
    """T = lambda max(p, d) + (1 - lambda) min(p, d), where p = max(alpha l^2 + beta l, c) and
    d = gamma max(L) + delta mean(L), in milliseconds.

    Eq. 6 is of one prompt, since the paper computes prompts one by one and whole. Here a step has several chunks of
    prompts, which share one pass: l is their tokens, S_p, and c is there once. l^2 is what a chunk of n tokens over m
    computed ones adds to the square of its prompt's length, (m + n)^2 - m^2: twice its query-key pairs less n. So the
    chunks of a prompt have together what it has in one piece.

    Eq. 8 holds for every batch, also for one that lacks a phase: that phase takes 0. So a phase alone takes lambda
    times its p or d; and both together take longer than either alone and less than the two alone one after the other,
    as the paper says, for lambda from 0.5 (their sum) to 1 (the longer one). Were a phase alone to take p or d, a first
    decode beside a prompt would make the step shorter.

    Eq. 7 falls where a decode comes that is shorter than the mean. No mean is monotone, whichever is chosen: one decode
    of the longest context alone has that as its mean, so more decodes beside it could never have a lower one. So a
    prediction is Eq. 7 as it is printed; a marginal cost is what the prediction rises by, and 0 where it falls. What a
    batch's requests cost one after another is never less than the prediction for all of them.

    Raises ValueError for a negative or non-finite coefficient, and for a ``balance`` outside 0.5 to 1.
    """

    prefill_square: float  # alpha
    prefill_token: float  # beta
    prefill_least: float  # c
    longest_decode: float  # gamma, for each KV token
    mean_decode: float  # delta, for each KV token
    balance: float  # lambda

    def __post_init__(self) -> None:
        require_sound((name, getattr(self, name)) for name in self.__dataclass_fields__)
        if not 0.5 <= self.balance <= 1.0:
            raise ValueError(f"balance is {self.balance}; it must be between 0.5 and 1")

    def coefficients(self) -> EchoCoefficients:
        """alpha, beta, c, gamma, delta, lambda."""
        prefills = (self.prefill_square, self.prefill_token, self.prefill_least)
        return (*prefills, self.longest_decode, self.mean_decode, self.balance)

    def predict_ms(self, features: BatchFeatures) -> float:
        return self._batch_ms(self._prefill_ms(features), self._decode_ms(features))

    def decode_cost_ms(self, features: BatchFeatures, context_len: int) -> float:
        prefill_ms = self._prefill_ms(features)
        before_ms = self._batch_ms(prefill_ms, self._decode_ms(features))
        return max(self._batch_ms(prefill_ms, self._decode_ms(features, context_len)) - before_ms, 0.0)

    def prefill_cost_ms(self, features: BatchFeatures, num_tokens: int, num_computed_tokens: int) -> float:
        decode_ms = self._decode_ms(features)
        before_ms = self._batch_ms(self._prefill_ms(features), decode_ms)
        pairs = attention_pairs(num_tokens, num_computed_tokens)
        return max(self._batch_ms(self._prefill_ms(features, num_tokens, pairs), decode_ms) - before_ms, 0.0)

    def scaled(self, factor: float) -> EchoLatencyModel:
        """The same batches, each ``factor`` times as long."""
        alpha, beta, least, gamma, delta = (each * factor for each in self.coefficients()[:-1])
        return EchoLatencyModel(alpha, beta, least, gamma, delta, self.balance)

    def _prefill_ms(self, features: BatchFeatures, more_tokens: int = 0, more_pairs: int = 0) -> float:
        """Eq. 6, with a chunk more where its tokens and pairs are given."""
        if not (features.prefill_requests or more_tokens):
            return 0.0
        tokens = features.prefill_tokens + more_tokens
        squares = prefill_squares(tokens, features.prefill_pairs + more_pairs)
        return max(self.prefill_square * squares + self.prefill_token * tokens, self.prefill_least)

    def _decode_ms(self, features: BatchFeatures, more_tokens: int = 0) -> float:
        """Eq. 7, with a decode more where its context is given."""
        requests = features.decode_requests + (more_tokens > 0)
        if not requests:
            return 0.0
        mean = (features.decode_kv_tokens + more_tokens) / requests
        longest = max(features.longest_decode, more_tokens, mean)  # nobody may have told it; then it is no less
        return self.longest_decode * longest + self.mean_decode * mean

    def _batch_ms(self, prefill_ms: float, decode_ms: float) -> float:
        """Eq. 8."""
        longer, shorter = (prefill_ms, decode_ms) if prefill_ms > decode_ms else (decode_ms, prefill_ms)
        return self.balance * longer + (1.0 - self.balance) * shorter


def prefill_squares(tokens: int, pairs: int) -> int:
    """l^2 of a batch's chunks: the sum of what each adds to the square of its prompt's length."""
    return max(2 * pairs - tokens, 0)
