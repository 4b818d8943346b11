"""Packing in two phases, SLO-aware: HyGen Alg. 1, called twice as in Alg. 2 lines 9-18, and its reconciliation on the
executor, Alg. 2 lines 24-32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, filterfalse
from typing import NamedTuple

from shared.latency.model import LatencyModel
from shared.scheduling.credit import NO_SHARE, OnlineShare
from shared.scheduling.orders.offline.view import OfflineQueue
from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.giving_way import give_back_offline_blocks
from shared.scheduling.packing.online_limit import OnlineLimit
from shared.scheduling.packing.packing import Passing, StepState, so_that_some_go_on
from shared.scheduling.packing.victims import Victims, schedulable
from shared.scheduling.request import OFFLINE, ONLINE, Kind, Request, split_decodes
from shared.scheduling.schedule import LATEST, Schedule, ScheduledRequest
from shared.scheduling.table import RequestTable


class OfflineScope(NamedTuple):
    """Which offline work a step may have beside its online part, blocks and time aside."""

    decodes: bool = True
    prompts: bool = True

    def has(self, request: Request) -> bool:
        return self.decodes if request.is_decode else self.prompts


class TwoPhasePacking:
    """HyGen's: online work as if it were alone, then offline work within the latency budget.

    While no online request is held, the first offline one runs whatever the budget, and so where those that are held
    wait for blocks that only the end of offline ones gives them; beside online work it does so once in ``PROBE_STEPS``
    steps that have had none, so that a latency model that keeps all of them out is seen to be wrong, but not under a
    budget of 0, which keeps them out on purpose.

    The online phase may take the blocks of M_off (``StepState.num_offline_blocks``), none of them of requests in
    flight, which stay as they are. Blocks of paused requests count as free.

    Where the policy has a ``batch_multiple``, offline prompts are cut to it once all that fits is there.
    """

    uses_time = False
    keeps_plans = True
    orders_online = False
    keeps_reserve = True
    cuts_to_multiples = True
    moves_requests = False
    sheds_online = False
    latency_budgets: tuple[str, ...] = ("none", "fixed", "profiled")
    offline_orders: tuple[str, ...] | None = None

    def gives_way(self, table: RequestTable, model: LatencyModel) -> str:
        return LATEST

    def schedule(self, state: StepState, offline_queue: OfflineQueue) -> Schedule:
        return so_that_some_go_on(state, lambda each: self._pack(each, offline_queue))

    def _pack(self, state: StepState, offline_queue: OfflineQueue) -> Schedule:
        table, builder = state.table, _builder(state)
        online = _OnlineHeld.of(table)
        limit = self.online_limit(state, builder, online.decodes)
        preempted = _online_phase(builder, state, limit, online)
        gives_way = self.gives_way(table, state.model)
        preempted += give_back_offline_blocks(builder, table, state.num_offline_blocks, preempted, gives_way)
        share = _bound(builder, state, limit)
        if state.policy.offline_enabled:
            preempted += self.offline_phase(builder, state, offline_queue, preempted)
            _round_down(builder, state)
        return _schedule(builder, preempted, share, gives_way)

    def reconcile(self, state: StepState, plan: Sequence[ScheduledRequest], preempted: Iterable[str]) -> Schedule:
        """Requests that ended are forgotten, online requests that have just arrived enter (UPDATE_BUDGET), and offline
        entries that no longer fit are dropped from the tail (PREEMPT_UNTIL_FIT). Of ``preempted``, those still running
        lose their KV here too."""
        table = state.table
        lost = [request_id for request_id in preempted if _may_lose(table, request_id)]
        freed = _num_freed_blocks(table, lost)
        # What the plan takes from online requests is free; what it takes from offline ones is M_off already.
        builder = _builder(state, freed[ONLINE])
        online = _OnlineHeld.of(table, lost)
        limit = self.online_limit(state, builder, online.decodes)
        _keep_online(builder, table, _keep_decodes(builder, online.decodes, plan), limit, lost)
        lost += _online_phase(builder, state, limit, online)
        num_offline_blocks = max(0, state.num_offline_blocks - freed[OFFLINE])
        gives_way = self.gives_way(table, state.model)
        lost += give_back_offline_blocks(builder, table, num_offline_blocks, lost, gives_way)
        share = _bound(builder, state, limit)
        num_dropped = 0
        if state.policy.offline_enabled:
            num_dropped = _keep_what_fits(builder, state, plan, lost, self.scope(state, builder))
            num_dropped += _round_down(builder, state)
        return _schedule(builder, lost, share, gives_way, num_dropped)

    def online_limit(self, state: StepState, builder: BatchBuilder, decodes: Sequence[Request]) -> OnlineLimit:
        """What bounds chunks of online prompts, and all of offline work beside the latency budget: nothing.
        ``decodes``: all online ones that the step may take."""
        return OnlineLimit()

    def offline_phase(
        self, builder: BatchBuilder, state: StepState, offline_queue: OfflineQueue, preempted: Sequence[str]
    ) -> list[str]:
        """Phase two; what it preempted."""
        return OfflinePhase(builder, state, offline_queue, preempted).make()

    def scope(self, state: StepState, builder: BatchBuilder) -> OfflineScope:
        """Of phase two; ``builder``: with the online part."""
        return OfflineScope()


@dataclass(frozen=True, slots=True)
class _OnlineHeld:
    """Online requests that have KV and that the step may take, in order; and of them those that decode, and the
    others."""

    running: list[Request]
    decodes: list[Request]
    prefills: list[Request]

    @classmethod
    def of(cls, table: RequestTable, preempted: Sequence[str] = ()) -> _OnlineHeld:
        running = schedulable(table, ONLINE, preempted)
        return cls(running, *split_decodes(running))


def _builder(state: StepState, num_freed_blocks: int = 0) -> BatchBuilder:
    """All blocks that online work may have: those that are free, ``num_freed_blocks`` with them, and M_off."""
    num_blocks = state.num_free_blocks + state.num_offline_blocks + num_freed_blocks
    budget_ms, lets_one_in = _budget(state, state.table.holds_online)
    return BatchBuilder(state.limits, state.model, budget_ms, num_blocks, state.cache, lets_one_in)


def _budget(state: StepState, has_online: bool) -> tuple[float, bool]:
    """L of a step, before its online part is known, and whether an offline request runs whatever that is."""
    budget_ms = state.policy.budget_ms(has_online, state.model)
    if not has_online:
        return min(budget_ms, state.pace.most_idle_ms), True
    return budget_ms, bool(budget_ms or state.policy.tolerance) and state.pace.probes


def _bound(builder: BatchBuilder, state: StepState, limit: OnlineLimit) -> OnlineShare:
    """Offline work, after the online phase: by what that leaves of its limit, and where it is held to a tolerance by
    that."""
    if not builder.entries and _waits_for_offline(state.table):
        builder.bound(*_budget(state, has_online=False))
        return NO_SHARE
    builder.bound(min(builder.latency_budget_ms, limit.offline_ms))
    if state.policy.tolerance is None or not builder.entries:
        return NO_SHARE
    has_prompts = builder.features.prefill_requests > 0 or bool(state.table.waiting(ONLINE))
    share = OnlineShare(len(builder.entries), builder.latency_ms, state.policy.tolerance, has_prompts)
    builder.bound(min(state.pace.credit.budget_ms(share), limit.offline_ms))
    return share


def _schedule(
    builder: BatchBuilder, preempted: list[str], share: OnlineShare, gives_way: str, num_dropped: int = 0
) -> Schedule:
    made = builder.entries, preempted, builder.latency_ms
    return Schedule(*made, num_dropped, share=share, spare_ms=builder.spare_ms, gives_way=gives_way)


def _waits_for_offline(table: RequestTable) -> bool:
    """Online requests are held, none of which could be added: nothing gives them blocks but the end of offline
    requests."""
    return table.holds_online and not any(each.is_in_flight for kind in Kind for each in table.running(kind).values())


def _round_down(builder: BatchBuilder, state: StepState) -> int:
    """How many offline entries the multiple leaves nothing of."""
    return builder.round_down(state.policy.batch_multiple) if state.policy.batch_multiple else 0


def _online_phase(builder: BatchBuilder, state: StepState, limit: OnlineLimit, online: _OnlineHeld) -> list[str]:
    """Phase one: decodes, then chunks of started prompts, then waiting prompts, in order. Returns what it preempted."""
    victims = Victims(builder, online.running)
    decodes, prefills = map(builder.left_out, (online.decodes, online.prefills))
    decodes = limit.decodes(decodes)

    def add(request: Request) -> bool:
        return builder.try_add(request, False, limit.at_most(request))

    for left in (decodes[builder.add_decodes(decodes) :], prefills):
        for request in left:
            if not builder.has_room:
                return victims.lost
            if request.request_id not in victims.lost:
                victims.make_room(request, add)
    if not victims.lost:  # a waiting prompt must not enter on blocks taken from a started one
        num_growing = len(online.running)
        for request in state.table.online_queue():
            if request.request_id not in builder.scheduled:
                fits = builder.fits_whole(request, int(state.policy.growth_room * num_growing))
                if not fits or not builder.try_prefill(request, False, limit.at_most(request)):
                    break
            num_growing += 1
    return victims.lost


class OfflinePhase:
    """Phase two: decodes that fit the latency budget, then chunks until one does not fit; then those that are paused,
    those that wait and those that may enter, in order."""

    def __init__(
        self, builder: BatchBuilder, state: StepState, offline_queue: OfflineQueue, preempted: Sequence[str]
    ) -> None:
        """``preempted``: who has lost its KV to the online phase."""
        self.builder = builder
        self.state = state
        self._offline_queue = offline_queue
        self._preempted = preempted
        held = schedulable(state.table, OFFLINE, preempted)
        self._paused = [request for request in held if request.is_paused]
        self.running = [request for request in held if not request.is_paused]
        self.victims = Victims(builder, self.running)
        self._passing = Passing(builder, state)

    def make(self, scope: OfflineScope = OfflineScope()) -> list[str]:
        """Returns what it preempted so that started work can go on where blocks, not time, are short."""
        lost = self.victims.lost
        if scope.decodes:
            self.add_decodes([request for request in self.running if request.is_decode])
        # What has just lost its KV would only take it from others.
        if scope.prompts and self._add_started() and not (self._preempted or lost):
            self._let_in()
        return lost

    def add_decodes(self, decodes: list[Request]) -> None:
        for request in decodes[self.builder.add_bounded_decodes(decodes) :]:
            self.add_decode(request)

    def add_decode(self, request: Request) -> None:
        """On blocks of others where no others are free."""
        if request.request_id not in self.victims.lost:
            self.victims.make_room(request, partial(self.builder.try_decode, bounded=True))

    def may_begin(self, request: Request) -> bool:
        """The prompt of one that waits, and fits."""
        return True

    def _add_started(self) -> bool:
        """False where one did not fit."""
        for request in self.running:
            if request.is_decode or request.request_id in self.victims.lost:
                continue
            if not self.victims.make_room(request, partial(self.builder.try_prefill, bounded=True)):
                return False
        return True

    def _let_in(self) -> None:
        builder, state = self.builder, self.state
        reserve = len(state.table.running(OFFLINE)) - len(self._paused)  # a block each, so that those can grow
        if not builder.has_room or reserve + state.num_blocks_to_leave(builder) > builder.num_blocks_left:
            return
        if state.leaves_online_waiting(builder):
            return
        for request in self._waiting():
            num_left = reserve + state.num_blocks_to_leave(builder)
            if not builder.fits_whole(request, num_left) or not (request.is_paused or self.may_begin(request)):
                break
            if not builder.try_add(request, bounded=True):
                break
            reserve += 1

    def _waiting(self) -> Iterator[Request]:
        """Read lazily, so that the queue sees what those before it have left."""
        held = chain(self._paused, self.state.table.waiting(OFFLINE).values())
        yield from filterfalse(self._passing.is_passed, held)
        yield from self._offline_queue(self.state.view(self.builder, self._passing.is_passed))


def _keep_decodes(
    builder: BatchBuilder, decodes: Sequence[Request], plan: Sequence[ScheduledRequest]
) -> Sequence[ScheduledRequest]:
    """Where the plan begins with just the decodes that there are, as it does unless something unforeseen has happened:
    they stay. Returns the rest of the plan."""
    num_decodes = len(decodes)
    if [entry.request_id for entry in plan[:num_decodes]] != [each.request_id for each in decodes]:
        return plan
    builder.add_fitting_decodes(decodes)
    return plan[num_decodes:]


def _keep_online(
    builder: BatchBuilder,
    table: RequestTable,
    plan: Iterable[ScheduledRequest],
    limit: OnlineLimit,
    preempted: Sequence[str],
) -> None:
    """The plan's online entries that can still run."""
    decodes: list[Request] = []  # one after the other in the plan, and not added yet
    running = table.running(ONLINE)
    for entry in plan:
        request = running.get(entry.request_id) or table.get(entry.request_id)
        if request is None or request.num_in_flight_tokens or request.kind is not ONLINE:
            continue
        if entry.request_id in preempted:
            continue
        if request.is_decode:
            decodes.append(request)
            continue
        builder.add_fitting_decodes(decodes)
        decodes.clear()
        at_most = limit.at_most(request)
        num_tokens = entry.num_scheduled_tokens
        builder.try_add(request, False, num_tokens if at_most is None else min(num_tokens, at_most))
    builder.add_fitting_decodes(decodes)


def _keep_what_fits(
    builder: BatchBuilder,
    state: StepState,
    plan: Iterable[ScheduledRequest],
    preempted: Sequence[str],
    scope: OfflineScope,
) -> int:
    """The plan's offline entries, in order, as long as they fit, with the reserve as it is by now; returns how many did
    not."""
    num_dropped = 0
    for entry in plan:
        if entry.kind is not OFFLINE:
            continue
        request = state.table.get(entry.request_id)
        if request is None or request.is_in_flight:
            continue  # ended since, or runs in a step before
        is_kept = entry.request_id not in preempted and scope.has(request)
        is_kept = is_kept and _leaves_reserve(builder, state, request)
        if not (is_kept and builder.try_add(request, True, entry.num_scheduled_tokens)):
            num_dropped += 1
    return num_dropped


def _leaves_reserve(builder: BatchBuilder, state: StepState, request: Request) -> bool:
    """Asked only of one that enters or comes back."""
    if not state.num_reserved_blocks or (request.is_running and not request.is_paused):
        return True
    return builder.fits_whole(request, state.num_blocks_to_leave(builder))


def _may_lose(table: RequestTable, request_id: str) -> bool:
    request = table.get(request_id)
    return request is not None and request.is_running and not request.is_in_flight


def _num_freed_blocks(table: RequestTable, request_ids: Iterable[str]) -> dict[Kind, int]:
    """Blocks that are free, by kind, once these lose their KV."""
    freed = {ONLINE: 0, OFFLINE: 0}
    for request_id in request_ids:
        request = table.get(request_id)
        assert request is not None
        freed[request.kind] += request.num_freed_blocks
    return freed
