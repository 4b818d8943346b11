"""A batch as a slow reader builds it: predicted as a whole, its blocks counted anew; and who may be in it."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.latency.features import BatchFeatures
from shared.scheduling.packing.pace import TURN_STEPS, TURNS
from shared.scheduling.packing.packing import MAX_PASSED, StepState
from shared.scheduling.request import OFFLINE, Request
from shared.scheduling.schedule import ScheduledRequest


@dataclass
class NaiveBatch:
    """What a step has so far. ``num_free``: blocks that are there for all of it."""

    state: StepState
    limit_ms: float
    num_free: int
    max_seqs: int
    chosen: list[tuple[Request, int]] = field(default_factory=list)
    lost: list[Request] = field(default_factory=list)

    def features(self, *more: tuple[Request, int]) -> BatchFeatures:
        features = BatchFeatures()
        for request, num_tokens in (*self.chosen, *more):
            features.add_scheduled(num_tokens, self.num_computed(request))
        return features

    def ms(self, *more: tuple[Request, int]) -> float:
        return self.state.model.predict_ms(self.features(*more))

    @property
    def num_left(self) -> int:
        """Blocks."""
        return self.num_free - sum(self.num_new(*each) for each in self.chosen)

    def num_new(self, request: Request, num_tokens: int) -> int:
        if request.num_blocks:
            return request.num_new_blocks(num_tokens, self.state.limits.block_size)
        found = self.state.cache.found(request)
        return -(-(found.num_tokens + num_tokens) // self.state.limits.block_size) - found.num_held_blocks

    def num_computed(self, request: Request) -> int:
        return request.num_computed_tokens if request.num_blocks else self.state.cache.found(request).num_tokens

    def num_remaining(self, request: Request) -> int:
        return request.num_tokens - self.num_computed(request)

    @property
    def num_tokens_left(self) -> int:
        return self.state.limits.max_num_batched_tokens - sum(num_tokens for _, num_tokens in self.chosen)

    @property
    def has_room(self) -> bool:
        return len(self.chosen) < self.max_seqs and self.num_tokens_left > 0

    def longest(self, request: Request, at_most: int | None = None) -> int:
        """As many tokens of it as fit in every way; 0 for none."""
        if not self.has_room:
            return 0
        most = min(self.num_remaining(request), self.num_tokens_left, math.inf if at_most is None else at_most)
        with_blocks = range(1, int(most) + 1)
        most = bisect_right(with_blocks, self.num_left, key=lambda count: self.num_new(request, count))
        several = range(2, most + 1)  # a single one may count as a decode, which may take longer than two of a prompt
        num_in_time = bisect_right(several, self.limit_ms, key=lambda count: self.ms((request, count)))
        return 1 + num_in_time if num_in_time or (most and self.ms((request, 1)) <= self.limit_ms) else 0

    def add(self, request: Request, at_most: int | None = None) -> bool:
        num_tokens = self.longest(request, at_most)
        if num_tokens:
            self.chosen.append((request, num_tokens))
        return num_tokens > 0

    def fits_whole(self, request: Request, num_reserved: int) -> bool:
        return self.num_new(request, self.num_remaining(request)) + num_reserved <= self.num_left

    def make_room(self, request: Request, may_lose: list[Request], add: Callable[[], bool]) -> bool:
        """The last that is not in the batch loses its KV, until a token of the request has a block; nobody does where
        it is not added then."""
        lost_before, free_before = list(self.lost), self.num_free
        while self.num_new(request, 1) > self.num_left:
            left = [each for each in may_lose if each not in self.lost and not self.has(each)]
            if not left or left[-1] is request:
                break
            self.lost.append(left[-1])
            self.num_free += left[-1].num_blocks
        if self.num_new(request, 1) <= self.num_left and add():
            return True
        self.lost, self.num_free = lost_before, free_before
        return False

    @property
    def num_reserved(self) -> int:
        """Blocks that an offline request leaves that enters, where anything else runs."""
        table = self.state.table
        others = any(not request.is_paused for request in table.running(OFFLINE).values())
        return self.state.num_reserved_blocks if self.chosen or others or table.holds_online else 0

    def waiting_not_for_online(self, waiting: list[Request]) -> list[Request]:
        """Without those, up to so many, that would not fit if offline requests held nothing, and what they take now
        were free. To be asked before any is in the batch."""
        table, passed = self.state.table, list[Request]()
        num_blocks = self.num_left + table.num_blocks(OFFLINE)
        num_blocks -= self.state.num_reserved_blocks if table.holds_online else 0
        for request in waiting if self.state.pace.seed // TURN_STEPS % TURNS < TURNS - 1 else []:
            if len(passed) < MAX_PASSED and self.num_new(request, self.num_remaining(request)) > num_blocks:
                passed.append(request)
        return [each for each in waiting if each not in passed]

    @property
    def entries(self) -> list[ScheduledRequest]:
        return [ScheduledRequest(request.request_id, request.kind, num_tokens) for request, num_tokens in self.chosen]

    def has(self, request: Request) -> bool:
        return any(each is request for each, _ in self.chosen)


def offline_work(
    state: StepState, queue: list[Request], plan: list[ScheduledRequest] | None, lost: Sequence[Request] = ()
) -> tuple[list[Request], list[Request]]:
    """Who may go on, and who may enter after them, in order; with a ``plan`` only its own."""
    held = [each for each in state.table.running(OFFLINE).values() if not each.is_in_flight and each not in lost]
    paused = sorted((each for each in held if each.is_paused), key=lambda each: each.num_missing_slots)
    running, without_kv = [each for each in held if not each.is_paused], list(state.table.waiting(OFFLINE).values())
    if plan is None:
        return running, [*paused, *without_kv, *queue]
    ids = [entry.request_id for entry in plan if entry.kind is OFFLINE]
    without_kv = [each for key in ids for each in without_kv if each.request_id == key]
    running, paused = ([each for each in some if each.request_id in ids] for some in (running, paused))
    return running, [*paused, *without_kv]


def at_most(request: Request, plan: list[ScheduledRequest] | None) -> int | None:
    """Tokens, by a plan; None where it bounds nothing."""
    return next((each.num_scheduled_tokens for each in plan or () if each.request_id == request.request_id), None)
