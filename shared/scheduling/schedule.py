"""The two-phase SLO-aware schedule: HyGen Alg. 1, called twice as in Alg. 2 lines 9-18, and its reconciliation
on the executor, Alg. 2 lines 24-32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shared.latency.model import LatencyModel
from shared.scheduling.batch import BatchBuilder, Limits, Policy, Schedule, ScheduledRequest
from shared.scheduling.request import Kind, Request
from shared.scheduling.table import RequestTable


def two_phase_schedule(
    table: RequestTable,
    offline_queue: Iterable[Request],
    num_free_blocks: int,
    num_offline_blocks: int,
    limits: Limits,
    policy: Policy,
    model: LatencyModel,
) -> Schedule:
    """The next step of one executor.

    ``table``: what the executor holds; ``offline_queue``: offline requests that may enter after those, read lazily;
    ``num_free_blocks``: KV blocks that nobody holds; ``num_offline_blocks``: M_off, blocks that only offline
    requests hold, which the online phase may take: none of requests in flight, which stay as they are. Blocks of paused
    requests count as free. Nothing is changed: the caller applies the schedule.
    """
    builder = BatchBuilder(limits, model, policy.latency_budget_ms, num_free_blocks + num_offline_blocks)
    preempted = _online_phase(builder, table)
    preempted += _give_back_offline_blocks(builder, table, num_offline_blocks)
    if policy.offline_enabled:
        preempted += _offline_phase(builder, table, offline_queue, preempted)
    return Schedule(builder.entries, preempted, builder.latency_ms)


def reconcile(
    plan: Sequence[ScheduledRequest],
    preempted: Iterable[str],
    table: RequestTable,
    num_free_blocks: int,
    num_offline_blocks: int,
    limits: Limits,
    policy: Policy,
    model: LatencyModel,
) -> Schedule:
    """Fit a plan to what the executor alone knows: requests that ended, online requests that have just arrived
    (UPDATE_BUDGET), and offline entries that no longer fit, dropped from the tail (PREEMPT_UNTIL_FIT).

    ``preempted``: what the plan preempts; those still running lose their KV here too.
    """
    lost = [request_id for request_id in preempted if _may_lose(table, request_id)]
    freed = {Kind.ONLINE: 0, Kind.OFFLINE: 0}
    for request_id in lost:
        request = table.get(request_id)
        assert request is not None
        freed[request.kind] += request.num_freed_blocks
    # What the plan takes from online requests is free; what it takes from offline ones is M_off already.
    builder = BatchBuilder(
        limits, model, policy.latency_budget_ms, num_free_blocks + num_offline_blocks + freed[Kind.ONLINE]
    )
    for entry in plan:
        request = table.get(entry.request_id)
        if request is None or request.is_in_flight or request.kind is not Kind.ONLINE:
            continue
        if entry.request_id not in lost:
            builder.try_add(request, bounded=False, at_most=entry.num_scheduled_tokens)
    lost += _online_phase(builder, table, lost)
    lost += _give_back_offline_blocks(builder, table, max(0, num_offline_blocks - freed[Kind.OFFLINE]), lost)
    num_dropped = _keep_what_fits(builder, table, plan, lost) if policy.offline_enabled else 0
    return Schedule(builder.entries, lost, builder.latency_ms, num_dropped)


class _Victims:
    """Running requests of one kind that may lose their KV for one of the same kind: the latest first, and none
    that is in the batch already (PERFORM_PREEMPTION, Alg. 1 line 23)."""

    def __init__(self, builder: BatchBuilder, running: list[Request]) -> None:
        self._builder = builder
        self._left = list(running)
        self.lost: list[str] = []

    def make_room(self, request: Request) -> bool:
        """Free blocks until one more token of ``request`` fits; False where it must be held for now."""
        while self._builder.lacks_blocks(request):
            while self._left and self._left[-1].request_id in self._builder.scheduled:
                self._left.pop()
            if not self._left or self._left[-1] is request:
                return False
            victim = self._left.pop()
            self._builder.num_blocks_left += victim.num_blocks
            self.lost.append(victim.request_id)
        return True


def _online_phase(builder: BatchBuilder, table: RequestTable, preempted: Sequence[str] = ()) -> list[str]:
    """Phase one: decodes, then chunks of started prompts, then waiting prompts, in order. Returns what it preempted."""
    running = _schedulable(table, Kind.ONLINE, preempted)
    victims = _Victims(builder, running)
    for decoding in (True, False):
        for request in running:
            if request.is_decode != decoding or request.request_id in builder.scheduled:
                continue
            if not builder.has_room:
                return victims.lost
            if request.request_id in victims.lost or builder.try_add(request, bounded=False):
                continue
            if victims.make_room(request):
                builder.try_add(request, bounded=False)
    if not victims.lost:  # a waiting prompt must not enter on blocks taken from a started one
        for request in table.online_queue():
            if request.request_id in builder.scheduled:
                continue
            if not builder.fits_whole(request) or not builder.try_prefill(request, bounded=False):
                break
    return victims.lost


def _give_back_offline_blocks(
    builder: BatchBuilder, table: RequestTable, num_offline_blocks: int, preempted: Sequence[str] = ()
) -> list[str]:
    """Alg. 2 lines 14-17: where the online phase ate into M_off, offline requests lose their KV from the tail;
    what the others hold is no longer free for phase two. Returns what it preempted."""
    lost: list[str] = []
    for request in reversed(table.running(Kind.OFFLINE).values()):
        if builder.num_blocks_left >= num_offline_blocks:
            break
        if request.request_id not in preempted and not (request.is_in_flight or request.is_paused):
            lost.append(request.request_id)
            num_offline_blocks -= min(request.num_blocks, num_offline_blocks)
    builder.num_blocks_left = max(0, builder.num_blocks_left - num_offline_blocks)
    return lost


def _offline_phase(
    builder: BatchBuilder, table: RequestTable, offline_queue: Iterable[Request], preempted: Sequence[str]
) -> list[str]:
    """Phase two: decodes that fit the latency budget, then chunks until one does not fit; then those that are paused,
    those that wait and those that may enter, in order. Returns what it preempted so that started work can go on where
    blocks, not time, are short."""
    schedulable = _schedulable(table, Kind.OFFLINE, preempted)
    running = [request for request in schedulable if not request.is_paused]
    victims = _Victims(builder, running)
    for request in running:
        if request.is_decode and request.request_id not in victims.lost and victims.make_room(request):
            builder.try_decode(request, bounded=True)
    for request in running:
        if request.is_decode or request.request_id in victims.lost:
            continue
        if not victims.make_room(request) or not builder.try_prefill(request, bounded=True):
            return victims.lost
    if preempted or victims.lost:  # what has just lost its KV would only take it from others
        return victims.lost
    paused = [request for request in schedulable if request.is_paused]
    reserve = len(table.running(Kind.OFFLINE)) - len(paused)  # a block each, so that those running can grow
    for queue in (paused, table.waiting(Kind.OFFLINE).values(), offline_queue):
        for request in queue:
            if not builder.fits_whole(request, reserve) or not builder.try_add(request, bounded=True):
                return victims.lost
            reserve += 1
    return victims.lost


def _keep_what_fits(
    builder: BatchBuilder, table: RequestTable, plan: Iterable[ScheduledRequest], preempted: Sequence[str]
) -> int:
    """The plan's offline entries, in order, as long as they fit; returns how many did not."""
    num_dropped = 0
    for entry in plan:
        if entry.kind is not Kind.OFFLINE:
            continue
        request = table.get(entry.request_id)
        if request is None or request.is_in_flight:
            continue  # ended since, or runs in a step before
        if entry.request_id in preempted or not builder.try_add(request, True, entry.num_scheduled_tokens):
            num_dropped += 1
    return num_dropped


def _schedulable(table: RequestTable, kind: Kind, preempted: Sequence[str]) -> list[Request]:
    """Running requests that the step may take and that may lose their KV for it, in order."""
    return [r for r in table.running(kind).values() if r.request_id not in preempted and not r.is_in_flight]


def _may_lose(table: RequestTable, request_id: str) -> bool:
    request = table.get(request_id)
    return request is not None and request.is_running and not request.is_in_flight
