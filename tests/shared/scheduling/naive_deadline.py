"""BROS Alg. 1 as a slow reader packs it."""

import math
from dataclasses import dataclass
from functools import partial

from shared.scheduling.packing.packing import StepState
from shared.scheduling.request import OFFLINE, ONLINE, Request
from shared.scheduling.schedule import ScheduledRequest
from tests.shared.scheduling.deadlines import left_ms
from tests.shared.scheduling.naive_batch import NaiveBatch, at_most, offline_work


@dataclass
class NaiveDeadline:
    """``queue``: offline requests that may enter; with a ``plan`` only its own run."""

    state: StepState
    queue: list[Request]
    plan: list[ScheduledRequest] | None = None
    hit_time_limit: bool = False

    def pack(self) -> NaiveBatch:
        state = self.state
        num_free = state.num_free_blocks + state.num_offline_blocks
        max_seqs = min(state.pace.batch_size, state.limits.max_num_seqs)
        ready = [request for request in state.table if request.kind is ONLINE and not request.is_in_flight]
        in_time = [request for request in ready if self.can_meet(request)]
        limit_ms = min((left_ms(request, state.pace) for request in in_time), default=math.inf)
        batch = NaiveBatch(state, limit_ms, num_free, max_seqs)
        self.add_online(batch, sorted(ready, key=lambda each: (not self.can_meet(each), left_ms(each, state.pace))))
        self.give_back(batch)
        is_late = len(in_time) < len(ready)
        if state.policy.offline_enabled and not (is_late and batch.chosen):
            self.add_offline(batch)
        return batch

    def can_meet(self, request: Request) -> bool:
        alone = NaiveBatch(self.state, math.inf, 0, 1)
        most = min(alone.num_remaining(request), self.state.limits.max_num_batched_tokens)
        return left_ms(request, self.state.pace) >= alone.ms((request, most))

    def add_online(self, batch: NaiveBatch, ordered: list[Request]) -> None:
        running = [request for request in ordered if request.is_running]
        may_lose = [each for each in running if not self.can_meet(each)] + [
            each for each in running if self.can_meet(each)
        ]
        is_closed = False
        for request in ordered:
            if not batch.has_room:
                return
            is_past = not request.is_running and request.deadline_ms <= self.state.pace.now_ms
            if request in batch.lost or (is_closed and is_past):
                continue
            if request.is_running:
                batch.make_room(request, may_lose, partial(self.add_in_time, batch, request))
            else:
                share = 1.0 if left_ms(request, self.state.pace) <= 0 else self.state.policy.growth_room
                has_blocks = not batch.lost and batch.fits_whole(request, int(share * len(running)))
                is_closed = is_closed or not has_blocks
                if has_blocks:
                    self.add_in_time(batch, request)
            if self.hit_time_limit:
                return

    def add_in_time(self, batch: NaiveBatch, request: Request) -> bool:
        """The first whatever it takes."""
        is_first, limit_ms = not batch.chosen, batch.limit_ms
        is_added = batch.add(request)
        if is_first and not is_added:
            batch.limit_ms = math.inf
            is_added = batch.add(request)
            batch.limit_ms = limit_ms
        self.hit_time_limit = not is_added
        return is_added

    def give_back(self, batch: NaiveBatch) -> None:
        """What online requests took of offline blocks some offline request loses; the others keep theirs."""
        held = [
            each for each in self.state.table.running(OFFLINE).values() if not (each.is_in_flight or each.is_paused)
        ]
        num_offline = self.state.num_offline_blocks
        while batch.num_left < num_offline and held:
            batch.lost.append(held.pop())
            num_offline = max(0, num_offline - batch.lost[-1].num_blocks)
        batch.num_free -= min(num_offline, max(0, batch.num_left))

    def add_offline(self, batch: NaiveBatch) -> None:
        online = [request for request, _ in batch.chosen]
        running, waiting = offline_work(self.state, self.queue, self.plan, batch.lost)
        waiting = batch.waiting_not_for_online(waiting)
        for request in sorted(running, key=lambda each: not each.is_decode):
            if request in batch.lost or (request.is_decode and batch.add(request)):
                continue
            has_room = batch.make_room(request, running, partial(self.enter, batch, online, request))
            if not has_room and batch.num_new(request, 1) <= batch.num_left:
                return
        if batch.lost:
            return
        for count, request in enumerate(waiting, start=len(running)):
            if not batch.fits_whole(request, count + batch.num_reserved) or not self.enter(batch, online, request):
                return

    def enter(self, batch: NaiveBatch, online: list[Request], request: Request) -> bool:
        """In the place of the last online request, where that may wait a step."""
        most = at_most(request, self.plan)
        if batch.add(request, most):
            return True
        if len(online) < 2 or not online[-1].is_decode:
            return False
        before, last = list(batch.chosen), online[-1]
        batch.chosen = [each for each in before if each[0] is not last]
        if batch.add(request, most):
            is_worth_it = batch.chosen[-1][1] >= min(request.num_remaining_tokens, self.state.limits.block_size)
            next_ms = batch.ms() + self.state.pace.mean_step_ms
            if is_worth_it and left_ms(last, self.state.pace) >= next_ms:
                online.pop()
                return True
        batch.chosen = before
        return False
