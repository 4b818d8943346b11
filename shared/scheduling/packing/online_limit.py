"""What online requests leave of a step's time."""

import math
from collections.abc import Sequence

from shared.latency.features import BatchFeatures
from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.deadlines.deadline_queue import all_remaining_ms, remaining_ms
from shared.scheduling.packing.packing import StepState
from shared.scheduling.request import Request


class OnlineLimit:
    """None: chunks of online prompts are as long as fit, and offline work is bounded by its budget alone.

    ``offline_ms``: what the step may take with offline work.
    """

    @property
    def offline_ms(self) -> float:
        """To be asked once the online part is there."""
        return math.inf

    def at_most(self, request: Request) -> int | None:
        """Tokens that an online request may have, None where nothing bounds it; to be asked right before it is
        added."""
        return None

    def decodes(self, requests: list[Request]) -> list[Request]:
        """Those of them that run; to be asked right before they are added."""
        return requests


class OldestDecodes(OnlineLimit):
    """Of online requests that decode, the first to start, as many as end in time; at least one in a step. The others
    keep their KV and wait until some of these have ended: a portion is sacrificed so that the rest keeps its SLO (OOCO
    section 3.4.4). Prompts are not bounded. While one stands still no offline work makes steps longer: online requests
    are always first, all of them."""

    def __init__(self, builder: BatchBuilder, limit_ms: float) -> None:
        self._builder = builder
        self._limit_ms = limit_ms
        self._leaves_any_out = False

    @property
    def offline_ms(self) -> float:
        return 0.0 if self._leaves_any_out else math.inf

    def decodes(self, requests: list[Request]) -> list[Request]:
        least = 0 if self._builder.entries else 1
        oldest = requests[: max(least, self._builder.num_decodes_within(requests, self._limit_ms))]
        self._leaves_any_out = len(oldest) < len(requests)
        return oldest


class TightestDeadline(OnlineLimit):
    """SLO = min(SLO_r), the tightest constraint of the requests in the batch (Echo section 5.1). Decodes always run.

    Who cannot be in time any more bounds nobody: a decode whose deadline comes before the end of a step of online
    decodes alone, a prompt whose deadline comes before what the step has room for of it is computed. While there is
    one, no offline work adds to its lateness. Without deadlines it bounds nothing.
    """

    def __init__(self, state: StepState, builder: BatchBuilder, decodes: Sequence[Request]) -> None:
        """``decodes``: all online ones that the step may take."""
        self._builder = builder
        self._pace = state.pace
        self._model = state.model
        self._decodes = decodes
        self._limits_ms: tuple[float, float] | None = None  # of online and of offline work; None before they are asked

    @property
    def offline_ms(self) -> float:
        return self._limits()[1]

    def at_most(self, request: Request) -> int | None:
        if request.is_decode:
            return None
        builder, (limit_ms, offline_ms) = self._builder, self._limits()
        if min(request.deadline_ms, limit_ms) == math.inf:
            return None
        num_tokens = builder.longest_chunk(request, math.inf)
        if num_tokens == 0:
            return 0
        end_ms = builder.latency_ms + builder.chunk_cost_ms(num_tokens, builder.num_computed(request))
        left_ms = remaining_ms(request, self._pace)
        if end_ms <= left_ms:
            limit_ms = min(limit_ms, left_ms)
        self._limits_ms = limit_ms, min(offline_ms, limit_ms) if end_ms <= left_ms else 0.0
        return num_tokens if end_ms <= limit_ms else builder.longest_chunk(request, limit_ms)

    def _limits(self) -> tuple[float, float]:
        if self._limits_ms is None:
            self._limits_ms = self._of_decodes()
        return self._limits_ms

    def _of_decodes(self) -> tuple[float, float]:
        left_ms = all_remaining_ms(self._decodes, self._pace)
        if not left_ms:
            return math.inf, math.inf
        limit_ms, alone_ms = min(left_ms), self._alone_ms()
        if limit_ms >= alone_ms:
            return limit_ms, limit_ms
        return min((each for each in left_ms if each >= alone_ms), default=math.inf), 0.0

    def _alone_ms(self) -> float:
        """A step of the online decodes, which is often what the builder has when it is first asked for: before any
        prompt is added."""
        if self._builder.features.decode_requests == len(self._decodes):
            return self._builder.latency_ms
        alone = BatchFeatures()
        alone.add_decodes([each.num_computed_tokens + 1 for each in self._decodes])
        return self._model.predict_ms(alone)
