"""The offline-queue's picture of one executor: the left half of HyGen Alg. 2, without its queues.

Every step message replaces the picture with the executor's truth. On top of the truth the mirror assumes the
expected outcome of what runs (CALCULATE expected status, HyGen section A.1), so that later steps can be planned
while earlier ones run.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass

from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.scheduling.kv.prefix_cache import CacheChanges, PrefixCacheMirror
from shared.scheduling.kv.request_cache import HashedRequests
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.view import OfflineQueue
from shared.scheduling.orders.online.order import ClientCounters
from shared.scheduling.packing.pace import Pace
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.planning.expected_cache import ExpectedCache
from shared.scheduling.policy import Policy
from shared.scheduling.request import OFFLINE, ONLINE, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from shared.scheduling.strategy import Strategy
from shared.scheduling.table import RequestTable

NO_CHANGES = CacheChanges()
ARRIVAL_GRACE_STEPS = 3  # a request may be on its way to the executor while so many of its messages lack it


@dataclass(slots=True)
class _Arrival:
    request: Request
    step_messages_left: int


class ExecutorMirror:
    """What an executor is expected to hold when it next asks for a plan. ``pace``: at the time for which is planned."""

    def __init__(self, limits: Limits, strategy: Strategy, hashes_of: Callable[[str], Sequence[bytes]]) -> None:
        """``hashes_of``: of the full blocks of a request's tokens, by its id, as far as they are known."""
        self.limits = limits
        self.pace = Pace()
        self._slo = strategy.token_slo if strategy.uses_deadlines else None
        self._sharing = strategy.sharing
        self.table = RequestTable(strategy.make_online_order())
        self.num_free_blocks = limits.num_blocks
        self.num_wanted_blocks = self.num_reserved_blocks = 0  # as they were told last
        self.told_cache = PrefixCacheMirror()
        self._cache = ExpectedCache(self.told_cache, self._sharing.is_by_kind)
        self._hashes_of = hashes_of
        self._requests = HashedRequests(self._cache, limits.block_size, hashes_of, self._sharing.is_by_kind)
        self.knows_all = True  # that the executor holds, as far as it counts them
        self._arrivals: dict[str, _Arrival] = {}

    def arrive(self, request: Request, now_ms: float = 0.0, waited_ms: float = 0.0) -> None:
        """A request was sent to the executor: an online one, or an offline one by a plan that came too late for its
        step; known ids are ignored. ``waited_ms``: since it came to the gateway."""
        if self._slo is not None and request.kind is ONLINE:
            self._slo.arrive(request, now_ms, now_ms - waited_ms)
        if request.request_id not in self.table and request.request_id not in self._arrivals:
            self._arrivals[request.request_id] = _Arrival(request, ARRIVAL_GRACE_STEPS)
            self.table.add(copy(request))

    @property
    def late(self) -> list[str]:
        """The offline requests on their way."""
        return [each for each, arrival in self._arrivals.items() if arrival.request.kind is OFFLINE]

    def depart(self, request_id: str) -> None:
        """A request was aborted."""
        self._arrivals.pop(request_id, None)
        request = self.table.remove(request_id)
        if request is not None:
            self.num_free_blocks += request.num_freed_blocks

    def observe(
        self,
        states: Iterable[Request],
        ended: Iterable[str],
        num_free_blocks: int,
        counters: ClientCounters | None = None,
        pace: Pace | None = None,
        num_fresh: int | None = None,
        cache: CacheChanges = NO_CHANGES,
        num_wanted_blocks: int = 0,
        num_reserved_blocks: int = 0,
    ) -> None:
        """Take over the executor's word: all that it holds, in its order, before the step that it starts, its online
        order's memory, its pace, what has changed in its prefix cache, and what of its free blocks is wanted and what
        reserved (see ``StepState``). Where it counts the online requests that
        have never run, ``num_fresh``, those that it told before are not told again."""
        self.told_cache.apply(cache)
        self._cache.forget()
        held, gone = list(states), list(ended)
        for request_id in self._arrivals:
            self.table.remove(request_id)
        if self._arrivals:
            self._settle_arrivals({request.request_id for request in held}.union(gone))
        if num_fresh is None:
            self.table.replace(held, counters)
        else:
            self.table.renew(held, gone, counters)
        self.knows_all = num_fresh is None or self.table.num_fresh == num_fresh
        for arrival in self._arrivals.values():
            self.table.add(copy(arrival.request))
        self.num_free_blocks = num_free_blocks
        self.num_wanted_blocks, self.num_reserved_blocks = num_wanted_blocks, num_reserved_blocks
        self.pace = pace or Pace()

    def preempt(self, request_ids: Iterable[str]) -> None:
        """These lose their KV before a step, or are paused; those that do not run are ignored."""
        for request_id in request_ids:
            request = self.table.get(request_id)
            if request is not None and request.is_running:
                self.num_free_blocks += request.num_freed_blocks
                if self._sharing.is_paused_by_giving_way(request.kind):
                    request.num_kept_blocks = request.num_kept_blocks or 0
                else:
                    self.table.preempt(request)

    @property
    def lacks_blocks(self) -> bool:
        """What was started has more than there was: it starts once somebody has ended."""
        return self.num_free_blocks < 0

    def start(self, entries: Iterable[ScheduledRequest]) -> None:
        """A step starts: its requests have blocks for it and are in flight; what it computes is found, see
        ``StepCache``. Unknown ids are ignored."""
        for entry in entries:
            request, num_tokens = self.table.get(entry.request_id), entry.num_scheduled_tokens
            if request is not None:
                self._grow(request, num_tokens)
                request.num_in_flight_tokens = num_tokens
                self._fill_blocks(request, num_tokens)

    def finish(self, entries: Iterable[ScheduledRequest], elapsed_ms: float = 0.0) -> None:
        """The expected outcome of a step that was started, ``elapsed_ms`` from now on: every chunk is computed, every
        decode and every finished prompt gains one token, and a request at its length limit ends. EOS cannot be
        foreseen; the next word corrects it."""
        self.pace = self.pace.at(self.pace.now_ms + elapsed_ms)
        table, order, online = self.table, self.table.online_order, list[Request]()
        running = table.running(ONLINE), table.running(OFFLINE)
        for entry in entries:
            request = running[entry.kind].get(entry.request_id) or table.get(entry.request_id)
            if request is None:
                continue
            num_tokens = entry.num_scheduled_tokens
            request.num_in_flight_tokens = 0
            request.num_computed_tokens = num_computed = request.num_computed_tokens + num_tokens
            if request.num_tokens > num_computed:
                continue
            request.num_tokens += 1
            if entry.kind is ONLINE:
                online.append(request)
                if order.counts_output:
                    order.generate(request)
            if request.num_tokens >= request.max_total_tokens:
                self.depart(entry.request_id)
        if self._slo is not None:
            self._slo.advance_all(online, self.pace.now_ms)

    def plan(self, offline_queue: OfflineQueue, policy: Policy, model: LatencyModel) -> Schedule:
        """A step over the expected state."""
        num_offline = self._sharing.num_offline_blocks(
            self.table.num_blocks(OFFLINE), self.table.num_blocks_in_flight(OFFLINE)
        )
        state = StepState(
            self.table,
            max(0, self.num_free_blocks),
            num_offline,
            self.limits,
            policy,
            model,
            self.pace,
            self._requests,
            self.num_wanted_blocks,
            self.num_reserved_blocks,
        )
        return packing_named(policy.packing).schedule(state, offline_queue)

    def expected_ms(self, entries: Iterable[ScheduledRequest], model: LatencyModel) -> float:
        """How long a step with these takes, before its outcome is assumed; requests that are gone count for nothing."""
        features, table, scheduled = BatchFeatures(), self.table, list[tuple[int, int]]()
        running = table.running(ONLINE), table.running(OFFLINE)
        for entry in entries:
            request = running[entry.kind].get(entry.request_id) or table.get(entry.request_id)
            if request is not None:
                scheduled.append((entry.num_scheduled_tokens, request.num_computed_tokens))
        features.add_all(scheduled)
        return model.predict_ms(features)

    def _fill_blocks(self, request: Request, num_tokens: int) -> None:
        """With so many tokens that a step computes. Full blocks can be found from then on."""
        block_size, num_computed = self.limits.block_size, request.num_computed_tokens
        first, last = num_computed // block_size, (num_computed + num_tokens) // block_size
        if first < last:
            self._cache.hold(self._hashes_of(request.request_id)[first:last], request.kind)

    def _settle_arrivals(self, known: set[str]) -> None:
        """The executor has told of those, and of the others soon will."""
        for request_id, arrival in list(self._arrivals.items()):
            arrival.step_messages_left -= 1
            if request_id in known or arrival.step_messages_left <= 0:
                del self._arrivals[request_id]

    def _grow(self, request: Request, num_tokens: int) -> None:
        was_running = request.is_running
        if not was_running:
            self._enter(request)
        new_blocks = request.num_new_blocks(num_tokens, self.limits.block_size)
        request.num_blocks = request.num_own_blocks + new_blocks
        request.num_kept_blocks = None
        request.num_missing_slots = 0
        self.num_free_blocks -= new_blocks
        if not was_running and request.is_running:
            self.table.start(request)

    def _enter(self, request: Request) -> None:
        """With what the prefix cache has of it."""
        found = self._requests.found(request)
        request.num_computed_tokens = found.num_tokens
        request.num_blocks = found.num_tokens // self.limits.block_size
        self.num_free_blocks -= request.num_blocks - found.num_held_blocks
        if request.num_blocks:
            self._cache.hold(self._hashes_of(request.request_id)[: request.num_blocks], request.kind)
