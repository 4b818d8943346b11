"""How a step is filled: the seam between those who plan or start steps and the algorithms that pack them."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from typing import Protocol

from msgspec.structs import replace

from shared.latency.model import LatencyModel
from shared.scheduling.kv.request_cache import NO_CACHE, RequestCache
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.view import OfflineQueue, OfflineView, no_queue, nobody
from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.pace import Pace
from shared.scheduling.packing.victims import schedulable
from shared.scheduling.policy import Policy
from shared.scheduling.request import OFFLINE, ONLINE, Kind, Request
from shared.scheduling.schedule import LATEST, Schedule, ScheduledRequest
from shared.scheduling.table import RequestTable

MAX_PASSED = 64  # requests of a step, each of which is read and looked up: together less than a millisecond


@dataclass(frozen=True, slots=True)
class StepState:
    """What a step is packed from. ``table``: what the executor holds; ``num_free_blocks``: KV blocks that nobody holds;
    ``num_offline_blocks``: those that only offline requests outside any running step hold; ``cache``: the executor's
    prefix cache, as far as it is known; ``num_wanted_blocks``: those of the free ones whose contents offline requests
    will read, as far as the eviction is told; ``num_reserved_blocks``: free ones that are left for a burst of online
    work."""

    table: RequestTable
    num_free_blocks: int
    num_offline_blocks: int
    limits: Limits
    policy: Policy
    model: LatencyModel
    pace: Pace
    cache: RequestCache = NO_CACHE
    num_wanted_blocks: int = 0
    num_reserved_blocks: int = 0

    def num_blocks_to_leave(self, builder: BatchBuilder) -> int:
        """The reserve, as it bounds an offline request that would enter, or come back from a pause, after what the
        builder has. Those that run may grow into it: held up, they would only keep their blocks for longer. It keeps
        nobody out where nothing else runs: offline work goes on, however large the reserve."""
        if builder.entries or self.table.holds_online:
            return self.num_reserved_blocks
        runs = any(not request.is_paused for request in self.table.running(OFFLINE).values())
        return self.num_reserved_blocks if runs else 0

    def leaves_online_waiting(self, builder: BatchBuilder) -> bool:
        """An online request waits that the builder does not have. It would soon take the blocks of an offline one that
        entered, and room for it would come the later: so none does."""
        return any(request_id not in builder.scheduled for request_id in self.table.waiting(ONLINE))

    def view(self, builder: BatchBuilder, is_passed: Callable[[Request], bool] = nobody) -> OfflineView:
        """What an offline order sees once the batch has what the builder has."""
        return OfflineView(
            None,
            self.cache,
            builder.num_blocks_left,
            builder.latency_budget_ms,
            self.model,
            builder.features,
            self.table.running(ONLINE).values(),
            self.table.running(OFFLINE).values(),
            is_passed,
        )


def so_that_some_go_on(state: StepState, pack: Callable[[StepState], Schedule]) -> Schedule:
    """What ``pack`` makes of the state. Where that is empty and no step is in flight, though offline requests hold
    blocks that they do not give up to online ones, nobody gets any more, and nothing would ever run: then they give
    them up all the same."""
    made, table = pack(state), state.table
    if made.entries or any(each.is_in_flight for kind in Kind for each in table.running(kind).values()):
        return made
    num_blocks = table.num_blocks(OFFLINE)
    is_stuck = table.holds_online and num_blocks > state.num_offline_blocks
    return pack(dataclasses.replace(state, num_offline_blocks=num_blocks)) if is_stuck else made


class Passing:
    """Who of those that wait is passed by the ones behind it: who would lack blocks though no offline request ran. It
    waits for online ones to end, which may be for as long as there are any, and all offline work would wait with it.
    Nobody passes who gets its blocks from offline requests that end: it would wait for as long as smaller ones come.
    Lest who is passed does as well, where online requests leave it its blocks now and then, there are turns in which
    it is not (``Pace.holds_line``)."""

    def __init__(self, builder: BatchBuilder, state: StepState) -> None:
        """``builder``: with the online part alone, for which no offline request has lost its KV where any enters."""
        self._builder = builder
        self._table = state.table
        self._num_left = builder.num_blocks_left - (state.num_reserved_blocks if state.table.holds_online else 0)
        self._num_offline: int | None = None  # blocks, once somebody lacks any
        self._num_left_to_pass = 0 if state.pace.holds_line else MAX_PASSED

    def is_passed(self, request: Request) -> bool:
        """Of a step's, up to ``MAX_PASSED`` are. To be asked of each that waits, in turn."""
        if not self._num_left_to_pass or not self._waits_for_online(request):
            return False
        self._num_left_to_pass -= 1
        return True

    def _waits_for_online(self, request: Request) -> bool:
        num_blocks = self._builder.num_whole_blocks(request)
        if num_blocks <= self._num_left:
            return False
        if self._num_offline is None:
            self._num_offline = self._table.num_blocks(OFFLINE)
        return num_blocks > self._num_left + self._num_offline


class Packing(Protocol):
    """Both calls change nothing: the caller applies the schedule. Same state, same schedule."""

    uses_time: bool  # the schedule depends on when the step starts
    keeps_plans: bool  # a plan over what is here, for the same time where it uses that, is reconciled to itself
    orders_online: bool  # it decides itself which online request comes first
    keeps_reserve: bool  # it can leave blocks for online requests when an offline one enters
    cuts_to_multiples: bool  # it can hold the tokens of a step to multiples
    moves_requests: bool  # it is made for executors that hand requests over to each other
    sheds_online: bool  # it can leave online decodes out where they take too long by themselves
    latency_budgets: tuple[str, ...]  # those of a strategy that it works with
    offline_orders: tuple[str, ...] | None  # likewise; None for all

    def gives_way(self, table: RequestTable, model: LatencyModel) -> str:
        """By which rule of ``giving_way`` offline requests lose their KV to online ones."""

    def schedule(self, state: StepState, offline_queue: OfflineQueue) -> Schedule:
        """The next step. ``offline_queue``: offline requests that may enter after those held; asked once the step has
        come to them, if it does."""

    def reconcile(self, state: StepState, plan: Sequence[ScheduledRequest], preempted: Iterable[str]) -> Schedule:
        """Fit a plan to what the executor alone knows by now; no offline request runs that is not in the plan."""


class OneWayPacking(ABC):
    """A packing that reconciles a plan by packing anew, of offline requests only with the plan's."""

    uses_time: bool
    keeps_plans: bool
    orders_online: bool = True
    keeps_reserve: bool = True
    cuts_to_multiples: bool = False
    moves_requests: bool = False
    sheds_online: bool = False
    latency_budgets: tuple[str, ...]
    offline_orders: tuple[str, ...] | None = None

    def gives_way(self, table: RequestTable, model: LatencyModel) -> str:
        return LATEST

    def schedule(self, state: StepState, offline_queue: OfflineQueue) -> Schedule:
        return so_that_some_go_on(state, lambda each: self.pack(each, OfflineWork.of_queue(each.table, offline_queue)))

    def reconcile(self, state: StepState, plan: Sequence[ScheduledRequest], preempted: Iterable[str]) -> Schedule:
        made = self.pack(state, OfflineWork.of_plan(state.table, plan))
        return replace(made, num_dropped=_num_left_out(state, plan, made.entries))

    @abstractmethod
    def pack(self, state: StepState, offline: OfflineWork) -> Schedule:
        """The step's batch, which of offline requests has only ``offline``."""


@dataclass(frozen=True, slots=True)
class OfflineWork:
    """The offline requests that a step may run: ``running`` have KV and are in order; ``waiting`` may enter or go on
    after them. ``at_most``: tokens of those whose share is bounded by a plan."""

    running: list[Request]
    at_most: Mapping[str, int]
    _held: list[Request]
    _queue: OfflineQueue

    def waiting(
        self, state: StepState, builder: BatchBuilder, is_passed: Callable[[Request], bool] = nobody
    ) -> Iterator[Request]:
        """First those that are paused, by what has to come back from the host, then those that have lost their KV, then
        the queue; of all of them, who is not passed. Read lazily, so that it sees what those before it have left."""
        yield from filterfalse(is_passed, self._held)
        yield from self._queue(state.view(builder, is_passed))

    @classmethod
    def of_queue(cls, table: RequestTable, offline_queue: OfflineQueue) -> OfflineWork:
        """All that is held, then the queue."""
        running, paused = _running_and_paused(table)
        return cls(running, {}, [*paused, *table.waiting(OFFLINE).values()], offline_queue)

    @classmethod
    def of_plan(cls, table: RequestTable, plan: Sequence[ScheduledRequest]) -> OfflineWork:
        """What a plan has of those held."""
        at_most = {entry.request_id: entry.num_scheduled_tokens for entry in plan if entry.kind is OFFLINE}
        running, paused = ([r for r in each if r.request_id in at_most] for each in _running_and_paused(table))
        waiting = table.waiting(OFFLINE)
        held = [*paused, *(waiting[key] for key in at_most if key in waiting)]
        return cls(running, at_most, held, no_queue)


def _running_and_paused(table: RequestTable) -> tuple[list[Request], list[Request]]:
    """Offline requests that have KV."""
    held = schedulable(table, OFFLINE)
    paused = sorted((each for each in held if each.is_paused), key=lambda request: request.num_missing_slots)
    return [request for request in held if not request.is_paused], paused


def _num_left_out(state: StepState, plan: Sequence[ScheduledRequest], schedule: Sequence[ScheduledRequest]) -> int:
    """Offline entries of a plan that could run and do not."""
    running = {entry.request_id for entry in schedule}
    held = (state.table.get(entry.request_id) for entry in plan if entry.kind is OFFLINE)
    return sum(1 for r in held if r is not None and not r.is_in_flight and r.request_id not in running)
