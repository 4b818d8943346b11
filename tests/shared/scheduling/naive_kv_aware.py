"""The offline part of Echo's steps as a slow reader builds it: after each change all others are looked at anew."""

import math
from dataclasses import dataclass, field

from shared.latency.features import BatchFeatures
from shared.scheduling.packing.kv_aware.kv_changes import MAX_STARTED
from shared.scheduling.packing.kv_aware.offline_line import MAX_ENTRANTS
from shared.scheduling.packing.kv_aware.worth import SHORTEST_MS
from shared.scheduling.request import OFFLINE, ONLINE, Request
from tests.shared.scheduling.naive_batch import NaiveBatch


@dataclass
class NaiveWorth:
    """Eq. 1, 2 and 4."""

    batch: NaiveBatch
    num_wanted: int

    def num_evicted(self, request: Request, num_tokens: int) -> int:
        """Wanted blocks that it fills with something else, if it takes those first that nobody wants."""
        num_taken = self.batch.num_new(request, num_tokens)
        if not request.num_blocks:
            found = self.batch.state.cache.found(request)
            num_taken -= found.num_tokens // self.batch.state.limits.block_size - found.num_held_blocks
        return max(0, num_taken - max(0, self.batch.num_left - self.num_wanted)) if self.num_wanted else 0

    def punishment(self, request: Request, num_tokens: int) -> float:
        state = self.batch.state
        return state.policy.benefit.prefill * state.limits.block_size * self.num_evicted(request, num_tokens)

    def rate(self, request: Request, num_tokens: int) -> float:
        benefit = self.batch.state.policy.benefit
        if request.is_decode:
            gain = benefit.decode - self.punishment(request, 1) / self.num_served(request)
        else:
            gain = benefit.prefill * num_tokens - self.punishment(request, num_tokens)
        before, after = BatchFeatures(1, 1, 0, 0, 1), BatchFeatures(1, 1, 0, 0, 1)
        if self.batch.chosen:
            before, after = self.batch.features(), self.batch.features()
        after.add_scheduled(num_tokens, self.batch.num_computed(request))
        predict_ms = self.batch.state.model.predict_ms
        return gain / max(SHORTEST_MS, predict_ms(after) - predict_ms(before))

    def num_served(self, request: Request) -> int:
        """Tokens to come in a new block: that of the next step, and those that may follow it."""
        return max(1, min(self.batch.state.limits.block_size, request.max_total_tokens - request.num_tokens + 1))

    def pays(self, request: Request) -> bool:
        num_tokens = self.batch.num_remaining(request)
        gain = self.batch.state.policy.benefit.prefill * num_tokens - self.punishment(request, num_tokens)
        return request.is_paused or gain > 0

    def of_block(self, request: Request) -> float:
        benefit, block_size = self.batch.state.policy.benefit, self.batch.state.limits.block_size
        if request.is_decode:
            return benefit.decode * self.num_served(request)
        return benefit.prefill * min(block_size, request.num_remaining_tokens)


@dataclass
class NaiveChanges:
    """``batch``: with the online part."""

    batch: NaiveBatch
    queue: list[Request]
    lost: list[Request] = field(default_factory=list)

    def make(self) -> None:
        batch, state = self.batch, self.batch.state
        self.worth = NaiveWorth(batch, state.num_wanted_blocks)
        self.num_before = len(batch.chosen)
        held = [each for each in state.table.running(OFFLINE).values() if not each.is_in_flight]
        self.running = [each for each in held if not each.is_paused]
        first = [each for each in held if each.is_paused] + list(state.table.waiting(OFFLINE).values())
        left = batch.waiting_not_for_online([*first, *self.queue])
        first, queue = ([each for each in left if each in those] for those in (first, self.queue))
        first += queue[:1]
        others = sorted(queue[1:MAX_ENTRANTS], key=lambda each: 1.0 - batch.num_computed(each) / each.num_tokens)
        self.entrants, self.num_firm = first + others, len(first)  # the first ones nobody passes that lacks blocks
        if not all(batch.has(each) for each in state.table.waiting(ONLINE).values()):
            self.entrants = []
        self.num_reserved = len(self.running)
        self.prompts = [each for each in self.running if not each.is_decode]
        decodes = [each for each in self.running if each.is_decode]
        takes_block = [batch.num_new(each, 1) > 0 for each in decodes]
        if state.num_wanted_blocks:
            pairs = list(zip(decodes, takes_block, strict=True))
            self.groups = [[each for each, takes in pairs if takes is which] for which in (False, True)]
        else:
            self.groups = [decodes]
        self.go_on()
        self.take_out()
        has_begun = bool(state.table.running(OFFLINE))
        while not (self.lost or self.prompts) and batch.has_room and self.enter(has_begun or self.has_any):
            pass
        if not (self.lost or self.has_any) and not any(batch.add(each) for each in self.prompts[:MAX_STARTED]):
            self.enter(has_begun)

    @property
    def has_any(self) -> bool:
        return len(self.batch.chosen) > self.num_before

    def go_on(self) -> None:
        batch = self.batch
        while batch.has_room:
            chunks = [(each, batch.longest(each)) for each in self.prompts[:MAX_STARTED]]
            rates = [self.worth.rate(each, count) if count else -math.inf for each, count in chunks]
            best = max(rates, default=-math.inf)
            was_added = False
            while batch.has_room and any(self.groups):
                heads = [self.worth.rate(each[0], 1) if each else -math.inf for each in self.groups]
                if max(heads) < best:
                    break
                was_added |= batch.add(self.groups[heads.index(max(heads))].pop(0))
            if best == -math.inf:
                return
            if not was_added:
                batch.add(self.prompts.pop(rates.index(best)))

    def take_out(self) -> None:
        batch = self.batch
        while stalled := [each for each in self.running if self.is_stalled(each)]:
            left = [each for each in reversed(self.running) if not batch.has(each) and each not in self.lost]
            victim = least_missed(left, max(1, len(stalled) - 1))
            others = [each for each in stalled if each is not victim]
            if not others:
                break
            gain = sum(self.worth.of_block(each) for each in others[: victim.num_blocks])
            if gain <= batch.state.policy.benefit.prefill * victim.num_computed_tokens and self.has_any:
                break
            batch.num_free += victim.num_blocks
            if sum(batch.add(request) for request in others) == 0:
                batch.num_free -= victim.num_blocks
                break
            self.lost.append(victim)

    def is_stalled(self, request: Request) -> bool:
        """It lacks a block alone."""
        batch = self.batch
        if (
            batch.has(request)
            or request in self.lost
            or not batch.has_room
            or batch.num_new(request, 1) <= batch.num_left
        ):
            return False
        after = batch.features()
        after.add_decode(request.num_computed_tokens + 1)
        return batch.state.model.predict_ms(after) <= batch.limit_ms

    def enter(self, may_wait: bool) -> bool:
        num_left = self.num_reserved + self.batch.num_reserved
        if num_left > self.batch.num_left:
            self.entrants = []
        while self.entrants:
            request = self.entrants[0]
            fits = self.batch.fits_whole(request, num_left)
            if fits and (not may_wait or self.worth.pays(request)):
                num_free_reused = 0
                if not request.num_blocks:
                    found = self.batch.state.cache.found(request)
                    num_free_reused = found.num_tokens // self.batch.state.limits.block_size - found.num_held_blocks
                if not self.batch.add(request):
                    return False
                self.worth.num_wanted = max(0, self.worth.num_wanted - num_free_reused)
                self.num_reserved += 1
                self.num_firm -= 1
                self.entrants.pop(0)
                return True
            if not fits and self.num_firm > 0:
                self.entrants = []
            self.num_firm -= 1
            self.entrants = self.entrants[1:]
        return False


def least_missed(latest_first: list[Request], num_needed: int) -> Request:
    """Of those that free enough the one with the least computed; else that which frees the most."""
    enough = [each for each in latest_first if each.num_blocks >= num_needed]
    if enough:
        return min(enough, key=lambda each: each.num_computed_tokens)
    largest = max(each.num_blocks for each in latest_first)
    return min((each for each in latest_first if each.num_blocks == largest), key=lambda each: each.num_computed_tokens)
