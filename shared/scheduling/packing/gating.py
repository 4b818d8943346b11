"""Whether an offline prompt begins: offline request gating of OOCO (section 3.4.2), as a cost model.

The paper says what is compared, the time that a larger decode batch saves and what likely has to be computed again, and
gives no formulas. These are ours.

**Saved.** Let D(n) be the time of a step of n decodes, over contexts as long in the mean as with the newcomer. While it
generates beside n others, n + 1 tokens come in D(n + 1); without it they take (n + 1) D(n) / n, since it runs sooner or
later, in somebody's place, in a batch of n. So each step saves

    s = (n + 1) D(n) / n - D(n + 1)

which is its share of what all decodes pay together, the reading of the weights, and nothing once the batch is bound by
computing. Its prompt is to be computed either way and does not count.

**Lost.** Before each of its o steps it loses its KV with the hazard h: so it has r steps in the mean, the sum of
(1 - h)^i, i from 1 to o, and is evicted with the probability q = 1 - (1 - h)^o, after g tokens in the mean. Then its
prompt and those tokens are computed again, beside the decodes, which takes C(g).

It begins where r s >= q C(g). Where nobody was evicted nothing is at stake, and it always does.

**Assumptions.** The batch stays as large as it is, and contexts as they are. h is the same for all, and in the steps to
come as it was seen to be here: requests that lost their KV, to online requests or to each other, for each offline
request in a step, where older steps fade out. What is left free for bursts of online work
(``shared.scheduling.kv.reserve``) does not enter: who would not leave that is kept out before. o is the most that the
request may generate: how long answers are is not known here, and a shorter stay saves less and risks less. It is
evicted once at the most, with nothing of it left in the cache; the prefill itself is taken to be safe.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shared.bounds import Amount
from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.scheduling.request import Request

WINDOW_STEPS = 4096  # over which steps fade out: one or two minutes
PRIOR_RUNS = 1024.0  # of requests in steps, without an eviction, that are taken for granted: one proves little


class Evictions(msgspec.Struct, frozen=True, array_like=True):
    """Of one executor's steps so far, the newest counted most. ``lost``: offline requests that lost their KV; ``runs``:
    offline requests in steps, each step counted."""

    lost: Amount = 0.0
    runs: Amount = 0.0

    def after(self, num_lost: int, num_offline: int) -> Evictions:
        """A step starts with so many offline requests, for which so many lost their KV."""
        if not (self.runs or self.lost or num_lost or num_offline):
            return self
        kept = 1.0 - 1.0 / WINDOW_STEPS
        return Evictions(kept * self.lost + num_lost, kept * self.runs + num_offline)

    @property
    def hazard(self) -> float:
        """Probability that a request loses its KV before a step, at most 1."""
        return min(1.0, self.lost / (self.runs + PRIOR_RUNS))


class Gate:
    """Of one step. One request may always begin where no offline one has: an idle executor never stays idle."""

    def __init__(
        self,
        model: LatencyModel,
        decodes: BatchFeatures,
        begun: Iterable[Request],
        hazard: float,
        max_chunk: int,
        budget_ms: float,
    ) -> None:
        """``decodes``: what online requests generate; ``begun``: offline requests that have KV, all of which soon
        generate; ``max_chunk``: tokens of a prompt in a step; ``budget_ms``: of a step, beyond which no batch grows."""
        self._model = model
        self._decodes = decodes
        self._hazard = hazard
        self._max_chunk = max_chunk
        self._budget_ms = budget_ms
        context_lens = [request.num_tokens for request in begun]
        self._decodes.add_decodes(context_lens)
        self._is_idle = not context_lens

    def admit(self, request: Request) -> bool:
        """It may begin, and is counted from now on."""
        may_begin = self._is_idle or self.saved_ms(request) >= self.risked_ms(request)
        if may_begin:
            self._is_idle = False
            self._decodes.add_decode(request.num_tokens)
        return may_begin

    def saved_ms(self, request: Request) -> float:
        """r s; at least 0, since no model is good enough to tell that a larger batch is slower for each token."""
        count, batch = self._decodes.decode_requests, self._decodes.decodes(1, request.num_tokens)
        with_ms = self._model.predict_ms(batch)
        if count == 0 or with_ms > self._budget_ms:
            return 0.0
        context = round(batch.decode_kv_tokens * count / (count + 1))
        without = BatchFeatures(0, 0, context, count, 0, batch.longest_decode)
        without_ms = self._model.predict_ms(without) * (count + 1) / count
        return max(0.0, without_ms - with_ms) * mean_steps(self._hazard, _num_steps(request))

    def risked_ms(self, request: Request) -> float:
        """q C(g)."""
        num_steps = _num_steps(request)
        probability = 1.0 - (1.0 - self._hazard) ** num_steps
        if not probability:
            return 0.0
        num_tokens = request.num_tokens + round(mean_steps_before_eviction(self._hazard, num_steps))
        return probability * self._prefill_ms(num_tokens)

    def _prefill_ms(self, num_tokens: int) -> float:
        """Beside the decodes, in chunks."""
        starts = range(0, num_tokens, self._max_chunk)
        cost_ms, chunk = self._model.prefill_cost_ms, self._max_chunk
        return sum(cost_ms(self._decodes, min(chunk, num_tokens - start), start) for start in starts)


def mean_steps(hazard: float, num_steps: int) -> float:
    """Of one that has ``num_steps`` to run, before each of which it is evicted with the probability ``hazard``."""
    if hazard <= 0.0:
        return float(num_steps)
    return (1.0 - hazard) * (1.0 - (1.0 - hazard) ** num_steps) / hazard


def mean_steps_before_eviction(hazard: float, num_steps: int) -> float:
    """Likewise, of those that are evicted."""
    survives = (1.0 - hazard) ** num_steps
    if survives > 1.0 - 1e-6:  # at any of its steps alike
        return (num_steps - 1) / 2
    return (1.0 - hazard) / hazard - num_steps * survives / (1.0 - survives)


def _num_steps(request: Request) -> int:
    return max(1, request.max_total_tokens - request.num_tokens)
