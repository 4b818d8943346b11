"""How much later online tokens may come by offline work: a share of the time that they take without it.

Where no budget of milliseconds is given or found, each step earns that share for every online request in it, and what
offline work adds to a step is paid from what was earned, so that the mean holds while single steps may carry a whole
chunk. Both are measured: the time alone is what the model says, times what steps of online work alone were seen to take
of it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from shared.bounds import Amount, Count, Finite

MOST_EXTRA = 1.0  # of a step of decodes, over what it takes alone: who comes meanwhile waits for its end
SAVED_STEPS, OWED_STEPS = 1.0, 4.0  # so many of those can be paid at the most, or owed
NEWEST_STEP_WEIGHT = 0.05  # in the moving average of the model's error
FIRST_STEPS = 4  # that are seen before anything is added; the fastest of them counts
PERIOD, NUM_PROBES = 64, 6  # steps, and how many of them have no offline work
LEAST_DRIFT, MOST_DRIFT = 0.2, 5.0
MOST_SURPRISE = 1.25  # times the drift so far: a step that takes longer met something that is no part of it

Drift = Annotated[float, Meta(ge=LEAST_DRIFT, le=MOST_DRIFT)]


class OnlineShare(msgspec.Struct, frozen=True, array_like=True):
    """The online part of a step that is held to a tolerance; of another ``num_requests`` is 0."""

    num_requests: Count = 0
    alone_ms: Amount = 0.0  # predicted for the step without its offline work
    tolerance: Amount = 0.0  # share of that time by which online tokens may come later in the mean
    has_prompts: bool = False  # somebody waits for a first token


NO_SHARE = OnlineShare()


class Credit(msgspec.Struct, frozen=True, array_like=True):
    """Of one executor, after the steps so far. ``saved_ms``: what offline work may yet add, times the online requests
    that it adds it to; negative where it owes."""

    saved_ms: Finite = 0.0
    drift: Drift = 1.0  # what steps of online work alone take, over what the model says; without prompts
    num_steps: Count = 0  # with online work
    num_alone: Count = 0  # of those, the last in a row that had no other
    num_seen: Count = 0  # that ``drift`` was learnt from, since the model is the one it is
    prompt_drift: Drift = 1.0  # the same of steps with prompts
    num_prompts_seen: Count = 0

    def drift_of(self, share: OnlineShare) -> float:
        return self.prompt_drift if share.has_prompts else self.drift

    def num_seen_of(self, share: OnlineShare) -> int:
        return self.num_prompts_seen if share.has_prompts else self.num_seen

    def of_new_model(self) -> Credit:
        """The same where another latency model is asked from here on: how far off that one is has to be seen anew."""
        return replace(self, num_alone=0, num_seen=0, num_prompts_seen=0)

    def budget_ms(self, share: OnlineShare) -> float:
        """L of a step: what its online part takes, and what offline work may add."""
        return share.alone_ms + self.extra_ms(share)

    def extra_ms(self, share: OnlineShare) -> float:
        """What offline work may add to a step, as the model predicts it. Who waits for a first token pays for no other
        step's savings; and at first, and now and then, nothing is added for some steps, to see what they take."""
        if self.num_steps % PERIOD < NUM_PROBES or self.num_seen_of(share) < FIRST_STEPS:
            return 0.0
        most_ms = (share.tolerance if share.has_prompts else MOST_EXTRA) * share.alone_ms
        return max(0.0, min(self.saved_ms / (share.num_requests * self.drift_of(share)), most_ms))

    def started(self, share: OnlineShare, planned_ms: float) -> Credit:
        """A step begins that is predicted to take so long."""
        extra_ms = max(0.0, planned_ms - share.alone_ms)
        unit_ms = share.num_requests * self.drift_of(share)
        most_ms = MOST_EXTRA * unit_ms * share.alone_ms
        saved_ms = self.saved_ms + unit_ms * (share.tolerance * share.alone_ms - extra_ms)
        num_alone = 0 if extra_ms else self.num_alone + 1
        saved_ms = max(-OWED_STEPS * most_ms, min(SAVED_STEPS * most_ms, saved_ms))
        return replace(self, saved_ms=saved_ms, num_steps=self.num_steps + 1, num_alone=num_alone)

    def measured(self, share: OnlineShare, planned_ms: float, turn_ms: float) -> Credit:
        """And it took ``turn_ms``. The first step alone after others still suffers from these, in caches: one without
        prompts, which is short, says nothing."""
        drift = self.drift_of(share)
        if planned_ms > share.alone_ms:
            return replace(self, saved_ms=self.saved_ms - share.num_requests * (turn_ms - drift * planned_ms))
        if self.num_alone < (1 if share.has_prompts else 2) or share.alone_ms <= 0.0:
            return self
        num_seen = self.num_seen_of(share)
        drift = _learnt(drift, num_seen, turn_ms / share.alone_ms)
        if share.has_prompts:
            return replace(self, prompt_drift=drift, num_prompts_seen=num_seen + 1)
        return replace(self, drift=drift, num_seen=num_seen + 1)


def _learnt(drift: float, num_seen: int, ratio: float) -> float:
    """From one more step. Too large a drift would let offline work take that much of every step, too small a one only
    costs it some of its time: so of the first steps the fastest counts, and then it rises slowly."""
    if num_seen < FIRST_STEPS:
        learnt = min(drift, ratio) if num_seen else ratio
    else:
        weight = max(NEWEST_STEP_WEIGHT, 1.0 / (num_seen + 1))
        learnt = drift + weight * (min(ratio, MOST_SURPRISE * drift) - drift)
    return max(LEAST_DRIFT, min(MOST_DRIFT, learnt))
