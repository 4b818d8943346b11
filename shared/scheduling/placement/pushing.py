"""Which strict executor gets a request once its prompt is computed: the push of OOCO (section 3.4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel


@dataclass(frozen=True, slots=True)
class Taker:
    """A strict executor. ``work``: of its online requests, those that are on their way to it included;
    ``limit_ms``: S, infinite where it has none; ``num_free_tokens``: KV that nobody holds there, or that offline
    requests give way with, less what is on its way."""

    executor_id: str
    work: BatchFeatures
    model: LatencyModel
    limit_ms: float
    num_free_tokens: int

    def step_ms(self, num_tokens: int) -> float:
        """A step of its online decodes with one more, over so many KV tokens. Offline ones are left out of it where
        there is no time for them."""
        return self.model.predict_ms(self.work.decodes(1, num_tokens))

    def rank(self, num_tokens: int) -> tuple[float, float, int, str]:
        """By how late its tokens would come, then by the time between them, then by the room that is left."""
        step_ms = self.step_ms(num_tokens)
        return max(0.0, step_ms - self.limit_ms), step_ms, -self.num_free_tokens, self.executor_id


def best_taker(takers: Sequence[Taker], num_tokens: int) -> Taker | None:
    """Of those that have room for a request of so many tokens, the one whose steps are expected to be the least late
    with it; None where none has room: it goes on where it is, until one has."""
    having_room = (taker for taker in takers if taker.num_free_tokens >= num_tokens)
    return min(having_room, key=lambda taker: taker.rank(num_tokens), default=None)
