"""What online requests leave of a step's time."""

import math
from collections.abc import Sequence

from shared.latency.features import BatchFeatures
from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.deadline_queue import remaining_ms
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.victims import schedulable
from shared.scheduling.request import Kind, Request


class OnlineLimit:
    """None: chunks of online prompts are as long as fit, and offline work is bounded by its budget alone.

    ``offline_ms``: what the step may take with offline work, once its online part is there.
    """

    def __init__(self) -> None:
        self.offline_ms = math.inf

    def at_most(self, request: Request) -> int | None:
        """Tokens that an online request may have, None where nothing bounds it; to be asked right before it is
        added."""
        return None


class TightestDeadline(OnlineLimit):
    """SLO = min(SLO_r), the tightest constraint of the requests in the batch (Echo section 5.1). Decodes always run.

    Who cannot be in time any more bounds nobody: a decode whose deadline comes before the end of a step of online
    decodes alone, a prompt whose deadline comes before what the step has room for of it is computed. While there is
    one, no offline work adds to its lateness. Without deadlines it bounds nothing.
    """

    def __init__(self, state: StepState, builder: BatchBuilder, preempted: Sequence[str] = ()) -> None:
        super().__init__()
        self._builder = builder
        self._pace = state.pace
        self._limit_ms = math.inf
        decodes = [each for each in schedulable(state.table, Kind.ONLINE, preempted) if each.is_decode]
        left_ms = [remaining_ms(each, state.pace) for each in decodes if each.deadline_ms < math.inf]
        if left_ms:
            features = BatchFeatures()
            features.add_decodes([each.num_computed_tokens + 1 for each in decodes])
            alone_ms = state.model.predict_ms(features)
            self._limit_ms = min((each for each in left_ms if each >= alone_ms), default=math.inf)
            self.offline_ms = 0.0 if min(left_ms) < alone_ms else self._limit_ms

    def at_most(self, request: Request) -> int | None:
        if request.is_decode or min(request.deadline_ms, self._limit_ms) == math.inf:
            return None
        builder = self._builder
        num_tokens = builder.longest_chunk(request, math.inf)
        if num_tokens == 0:
            return 0
        end_ms = builder.latency_ms + builder.chunk_cost_ms(num_tokens, builder.num_computed(request))
        left_ms = remaining_ms(request, self._pace)
        if end_ms <= left_ms:
            self._limit_ms = min(self._limit_ms, left_ms)
        self.offline_ms = min(self.offline_ms, self._limit_ms) if end_ms <= left_ms else 0.0
        return num_tokens if end_ms <= self._limit_ms else builder.longest_chunk(request, self._limit_ms)
