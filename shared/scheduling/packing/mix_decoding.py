"""Packing by pools of executors: mix decoding selection of OOCO (section 3.4.4, Alg. 2), and what each pool does of
offline work (section 3.2, Table 1)."""

import math
import random
from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter

from shared.latency.bottleneck import is_compute_bound
from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.scheduling.orders.offline.view import OfflineQueue
from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.gating import Gate
from shared.scheduling.packing.giving_way import FEWEST, LONGEST
from shared.scheduling.packing.online_limit import OldestDecodes, OnlineLimit
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.two_phase import OfflinePhase, OfflineScope, TwoPhasePacking
from shared.scheduling.placement.role import Role
from shared.scheduling.request import OFFLINE, Kind, Request
from shared.scheduling.table import RequestTable

_length = attrgetter("num_computed_tokens")


class MixDecodingPacking(TwoPhasePacking):
    """OOCO's: online work as in two-phase, then offline decodes, a few at random and the shortest of the others, within
    the latency budget.

    A mixed executor has decodes, then prompts, within the budget. So has a strict one, where nobody sends prompts:
    those are of requests that have lost their KV there, and get what all decodes leave of the budget. Else one that was
    evicted where online requests never cease would not go on, and nobody would be asked for others (Alg. 1 line 2).
    A relaxed one has no offline work beside online prompts, and offline prompts in steps without online requests alone;
    what online requests generate there, since no strict executor has taken it, is as on a mixed one.

    The budget is S of the paper. Where it is a tolerance, or the step has no online request, it is that of two-phase.
    """

    moves_requests = True
    sheds_online = True

    def online_limit(self, state: StepState, builder: BatchBuilder, decodes: Sequence[Request]) -> OnlineLimit:
        limit_ms = state.policy.online_limit_ms
        return OnlineLimit() if limit_ms == math.inf else OldestDecodes(builder, limit_ms)

    def gives_way(self, table: RequestTable, model: LatencyModel) -> str:
        """OOCO section 3.4.1, by what the decodes that are here would wait for together."""
        decodes = BatchFeatures()
        for kind in Kind:
            decodes.add_decodes([request.num_tokens for request in table.running(kind).values() if request.is_decode])
        return LONGEST if is_compute_bound(model, decodes) else FEWEST

    def offline_phase(
        self, builder: BatchBuilder, state: StepState, offline_queue: OfflineQueue, preempted: Sequence[str]
    ) -> list[str]:
        return MixedPhase(builder, state, offline_queue, preempted).make(self.scope(state, builder))

    def scope(self, state: StepState, builder: BatchBuilder) -> OfflineScope:
        if state.policy.role is not Role.RELAXED:
            return OfflineScope()
        return OfflineScope(decodes=builder.features.prefill_requests == 0, prompts=not builder.entries)


class MixedPhase(OfflinePhase):
    """Two-phase's, with other decodes, and with prompts that begin only where that pays (``gating``)."""

    def __init__(
        self, builder: BatchBuilder, state: StepState, offline_queue: OfflineQueue, preempted: Sequence[str]
    ) -> None:
        super().__init__(builder, state, offline_queue, preempted)
        self._online = builder.features.decodes()

    def may_begin(self, request: Request) -> bool:
        return not self.state.pace.evictions.hazard or self._gate.admit(request)

    @cached_property
    def _gate(self) -> Gate:
        """Only a step that comes to those that wait needs it, where anything is at stake."""
        state, running = self.state, self.state.table.running(OFFLINE).values()
        return Gate(
            state.model,
            self._online,
            (request for request in running if not (request.is_paused or request.is_held)),
            state.pace.evictions.hazard,
            state.limits.max_num_batched_tokens,
            self.builder.latency_budget_ms,
        )

    def add_decodes(self, decodes: list[Request]) -> None:
        """OOCO Alg. 2. B is what the builder has: line 1, the online requests, and what is added here; L(B) <= S is the
        builder's latency budget. ``decodes``: R_off.

        - Lines 2 and 3: up to K of them, drawn without replacement. The seed is the pace's, which comes with each step
          message and changes with each step: the same state gives the same schedule here and where it is planned.
        - Lines 4 to 8: each is added if the batch with it ends in time; else it is left out of this step.
        - Lines 10 and 11: the others by length, ascending, ties in the order of their start. Where L(B) = S already,
          their largest prefix in time is empty.
        - Lines 12 and 13: that prefix, by bisection.

        The text of section 3.4.4 stops to draw once S is exceeded; the algorithm's lines go on, and so does this.

        Beyond the paper, blocks may be short, of which a decode takes a new one now and then. Then the latest to start
        that is not in the batch loses its KV, for one that has the time to run.
        """
        random_first = self._drawn(decodes)
        for request in random_first:
            self.add_decode(request)
        drawn = {request.request_id for request in random_first}  # membership only
        others = sorted((each for each in decodes if each.request_id not in drawn), key=_length)
        others = [request for request in others if request.request_id not in self.victims.lost]
        for request in others[self.builder.add_decodes_within(others) :]:
            if not self.builder.has_room or not self.builder.has_time_for(request):
                return  # the next are longer
            self.add_decode(request)

    def _drawn(self, decodes: list[Request]) -> list[Request]:
        policy, pace = self.state.policy, self.state.pace
        return random.Random(pace.seed).sample(decodes, min(policy.mix_samples, len(decodes)))
