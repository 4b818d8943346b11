"""Priority-based packing: Alg. 1 of BROS (section 4.2)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.deadlines.deadline_queue import DeadlineQueue, Timed
from shared.scheduling.packing.giving_way import give_back_offline_blocks
from shared.scheduling.packing.packing import OfflineWork, OneWayPacking, Passing, StepState
from shared.scheduling.packing.victims import Victims
from shared.scheduling.request import Request
from shared.scheduling.schedule import Schedule


class DeadlinePacking(OneWayPacking):
    """Online requests by remaining time, then offline ones, as long as the step ends before the first deadline.

    T_min_res is what is left to the most urgent online request that can still meet its deadline: that one is always in
    the batch, and the batch takes no longer. A request that is too late cannot be saved and bounds nobody: it comes
    after all that can be, and while one is, no offline request adds to its lateness. So some online request always
    runs, and where all are late the step is bounded by its tokens alone. Where the most urgent one waits for blocks and
    nobody fits the time that is left to it, the first that has blocks runs all the same: nothing else would free any.
    What is urgent changes with every arrival and every millisecond, so a plan is packed anew.
    """

    uses_time = True
    keeps_plans = False
    latency_budgets: tuple[str, ...] = ("deadline",)

    def pack(self, state: StepState, offline: OfflineWork) -> Schedule:
        queue = DeadlineQueue(state)
        limits = replace(state.limits, max_num_seqs=min(state.pace.batch_size, state.limits.max_num_seqs))
        # FindPreemptBlock: an online request takes the blocks of offline ones where no others are free.
        num_blocks = state.num_free_blocks + state.num_offline_blocks
        builder = BatchBuilder(limits, state.model, queue.limit_ms, num_blocks, state.cache)
        online = _OnlinePart(builder, queue, state.policy.growth_room)
        online.pack()
        preempted = online.lost + give_back_offline_blocks(builder, state.table, state.num_offline_blocks, online.lost)
        if state.policy.offline_enabled and not (queue.has_late and builder.entries):
            part = _OfflinePart(builder, online, state)
            part.pack(offline, preempted)
            preempted += part.lost
        made, hit_time_limit = (builder.entries, preempted, builder.latency_ms), online.hit_time_limit
        return Schedule(*made, hit_time_limit=hit_time_limit, spare_ms=builder.spare_ms)


class _OnlinePart:
    """Lines 5 to 14. Where not even offline requests have blocks left, the online ones that can wait longest lose
    theirs (section 5.2)."""

    def __init__(self, builder: BatchBuilder, queue: DeadlineQueue, growth_room: float) -> None:
        self.packed: list[Timed] = []  # the builder's first entries, in order
        self.hit_time_limit = False
        self._builder = builder
        self._queue = queue
        self._growth_room = growth_room
        running = queue.running()
        self._victims = Victims(builder, running)
        self._num_running = len(running)

    @property
    def lost(self) -> list[str]:
        return self._victims.lost

    def pack(self) -> None:
        """Until the batch is full, or takes as long as it may."""
        builder, lost = self._builder, self.lost
        for timed in self._queue.poll():
            request = timed.request
            if not (request.is_decode and request.request_id not in lost and builder.try_decode(request, bounded=True)):
                if not builder.has_room:
                    return
                if not (self._may_have_blocks(timed) and self._victims.make_room(request, self._add)):
                    if self.hit_time_limit:
                        return
                    continue
            self.packed.append(timed)

    def _add(self, request: Request) -> bool:
        """One that has the blocks; the first that is added whatever it takes."""
        is_added = self._builder.try_add(request, bounded=True)
        self.hit_time_limit = not (is_added or (not self.packed and self._builder.try_add(request, bounded=False)))
        return not self.hit_time_limit

    def _may_have_blocks(self, timed: Timed) -> bool:
        """One that waits must fit whole, not on blocks taken from one that has started, and leave a block for each that
        runs: else it, or one of those, would soon lose its KV, and be computed again. One that can still be in time
        cannot wait, and leaves them the policy's room. Where it does not fit, nobody behind it enters either who waits
        past a deadline."""
        request = timed.request
        if request.is_running:
            return request.request_id not in self.lost
        reserve = self._num_running if timed.remaining_ms <= 0 else int(self._growth_room * self._num_running)
        if not self.lost and self._builder.fits_whole(request, reserve):
            return True
        self._queue.close_entrance()
        return False


class _OfflinePart:
    """Lines 15 to 33, in the order of the cost of bringing KV back: running requests, of which nothing is missing,
    paused ones by what is, then those that are to be computed."""

    def __init__(self, builder: BatchBuilder, online: _OnlinePart, state: StepState) -> None:
        self._builder = builder
        self._online = online.packed
        self._state = state
        self._victims = Victims(builder, [])

    @property
    def lost(self) -> list[str]:
        """Running ones that gave their blocks to those before them."""
        return self._victims.lost

    def pack(self, offline: OfflineWork, preempted: Sequence[str]) -> None:
        """Until one neither fits nor may replace an online request. Who lacks blocks waits for those of earlier ones,
        which go on."""
        passing = Passing(self._builder, self._state)
        running = [request for request in offline.running if request.request_id not in preempted]
        self._victims = Victims(self._builder, running)
        for request in sorted(running, key=lambda request: not request.is_decode):
            if request.request_id in self.lost:
                continue
            if request.is_decode and self._builder.try_decode(request, bounded=True):
                continue
            has_room = self._victims.make_room(request, partial(self._enter, offline))
            if not (has_room or self._builder.lacks_blocks(request)):
                return
        if preempted or self.lost:  # what has just lost its KV would only take it from others
            return
        reserve = len(running)  # a block each, so that those running can grow
        for request in offline.waiting(self._state, self._builder, passing.is_passed):
            num_left = reserve + self._state.num_blocks_to_leave(self._builder)
            if not self._builder.fits_whole(request, num_left) or not self._enter(offline, request):
                return
            reserve += 1

    def _enter(self, offline: OfflineWork, request: Request) -> bool:
        at_most = offline.at_most.get(request.request_id)
        return self._builder.try_add(request, True, at_most) or self._replace_last(request, at_most)

    def _replace_last(self, request: Request, at_most: int | None) -> bool:
        """Lines 25 to 32: let it in for the least urgent online request. The paper takes whichever is last; here that
        one must decode (prompts that were put off would all need their time at once), must have the time left for this
        step and one more, so that it meets its deadline in the next, and a chunk that comes instead fills at least a
        block."""
        if len(self._online) < 2 or not self._online[-1].request.is_decode:
            return False
        builder, (remaining_ms, last) = self._builder, self._online[-1]
        num_tokens = builder.take_out(len(self._online) - 1, last)
        if builder.try_add(request, True, at_most):
            least_tokens = min(request.num_remaining_tokens, self._state.limits.block_size)
            is_worth_it = builder.entries[-1].num_scheduled_tokens >= least_tokens
            if is_worth_it and remaining_ms >= builder.latency_ms + self._state.pace.mean_step_ms:
                self._online.pop()
                return True
            builder.take_out(len(builder.entries) - 1, request)
        builder.put_back(len(self._online) - 1, last, num_tokens)
        return False
