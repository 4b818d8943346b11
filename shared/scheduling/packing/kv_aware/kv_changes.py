"""The offline part of a step, built change by change: the plan generator and selector of Echo (sections 3.2 and 4.1).

Eq. 4 has exponentially many batches to choose from. Here the batch grows by the best change at a time.
"""

import math
from collections.abc import Sequence
from operator import attrgetter

from shared.scheduling.orders.offline.view import OfflineQueue
from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.giving_way import least_missed
from shared.scheduling.packing.kv_aware.offline_decodes import OfflineDecodes
from shared.scheduling.packing.kv_aware.offline_line import OfflineLine
from shared.scheduling.packing.kv_aware.worth import Worth
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.victims import schedulable
from shared.scheduling.request import OFFLINE, Request

MAX_STARTED = 16  # prompts that have begun, the first to start first: the others wait for these


class OfflineChanges:
    """First what has started, decodes and chunks of prompts by what they earn for their time (Eq. 4): the last batch is
    the base of the next. Where requests that have started lack blocks, one of them loses its KV if the others earn more
    with it, or if none of them could go on. Then, one by one, who waits, where that earns more than it evicts, or where
    no offline request would run; but nobody before all online requests are in the batch (section 6).

    Beyond the paper, nobody enters while a started prompt does not fit. An entrant's cached prompt often earns more for
    its time, but what it then overtakes holds KV that is of use to nobody until it ends: document QA came to a
    sixth fewer tokens/s where entrants could overtake.
    """

    def __init__(
        self, builder: BatchBuilder, state: StepState, offline_queue: OfflineQueue, preempted: Sequence[str]
    ) -> None:
        """``builder``: with the online part; ``preempted``: who has lost its KV to that, and would only take others'
        if anybody entered."""
        self._builder = builder
        self._worth = Worth(builder, state)
        held = schedulable(state.table, OFFLINE, preempted)
        self._running = [request for request in held if not request.is_paused]
        self._decodes = OfflineDecodes(builder, self._worth, [each for each in self._running if each.is_decode])
        self._prompts = [each for each in self._running if not each.is_decode]
        self._has_begun = bool(state.table.running(OFFLINE))
        paused = [request for request in held if request.is_paused]
        reserve = len(self._running)  # a block each, so that those running can grow
        self._line = OfflineLine(builder, self._worth, state, paused, offline_queue, reserve)
        if preempted or state.leaves_online_waiting(builder):
            self._line.close()
        self._num_before = len(builder.entries)

    def make(self) -> list[str]:
        """Adds them to the builder; who lost its KV for others."""
        self._go_on()
        lost = self._take_out()
        if not lost:
            self._let_in()
        if not (lost or self._has_any):
            self._add_one()
        return lost

    @property
    def _has_any(self) -> bool:
        return len(self._builder.entries) > self._num_before

    def _go_on(self) -> None:
        """By the best change, until none is left that fits. Prompts are looked at anew after each other change."""
        while self._builder.has_room:
            changes = (self._worth.of_chunk(each) for each in self._prompts[:MAX_STARTED])
            best = max((each for each in changes if each is not None), key=attrgetter("rate"), default=None)
            was_added = self._decodes.add_while(-math.inf if best is None else best.rate)
            if best is None:
                return
            if not was_added:
                self._prompts.remove(best.request)
                self._builder.try_add(best.request, bounded=True)

    def _let_in(self) -> None:
        while not self._prompts and self._builder.has_room:
            if not self._line.enter(may_wait=self._has_begun or self._has_any):
                return

    def _take_out(self) -> list[str]:
        """Some of those that lack blocks, the least missed first, for the others."""
        lost: list[str] = []
        while stalled := [each for each in self._running if each.request_id not in lost and self._is_stalled(each)]:
            left = (each for each in reversed(self._running) if each.request_id not in self._builder.scheduled)
            victim = least_missed((each for each in left if each.request_id not in lost), max(1, len(stalled) - 1))
            others = [each for each in stalled if each is not victim]
            if victim is None or not others:
                break
            gain = sum(map(self._worth.of_block, others[: victim.num_blocks])) - self._worth.of_losing(victim)
            if gain <= 0 and self._has_any:
                break
            self._builder.num_blocks_left += victim.num_blocks
            num_added = sum(self._builder.try_add(request, bounded=True) for request in others)
            if not num_added:
                self._builder.num_blocks_left -= victim.num_blocks
                break
            lost.append(victim.request_id)
        return lost

    def _is_stalled(self, request: Request) -> bool:
        """It has time to go on, and no block."""
        builder = self._builder
        if request.request_id in builder.scheduled or not (builder.has_room and builder.lacks_blocks(request)):
            return False
        return builder.latency_ms + builder.decode_cost_ms(request) <= builder.latency_budget_ms

    def _add_one(self) -> None:
        """Where the builder lets one in whatever the budget."""
        for request in self._prompts[:MAX_STARTED]:
            if self._builder.try_add(request, bounded=True):
                return
        self._line.enter(may_wait=self._has_begun)
