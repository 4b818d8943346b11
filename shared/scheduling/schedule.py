"""The two-phase SLO-aware schedule: HyGen Alg. 1, called twice as in Alg. 2 lines 9-18, and its reconciliation
on the executor, Alg. 2 lines 24-32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shared.latency.model import LatencyModel
from shared.scheduling.batch import BatchBuilder, Limits, Policy, Schedule, ScheduledRequest
from shared.scheduling.request import Kind, Request
from shared.scheduling.table import RequestTable
from shared.scheduling.victims import Victims, give_back_offline_blocks, schedulable


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
    preempted += give_back_offline_blocks(builder, table, num_offline_blocks)
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
    lost += give_back_offline_blocks(builder, table, max(0, num_offline_blocks - freed[Kind.OFFLINE]), lost)
    num_dropped = _keep_what_fits(builder, table, plan, lost) if policy.offline_enabled else 0
    return Schedule(builder.entries, lost, builder.latency_ms, num_dropped)


def _online_phase(builder: BatchBuilder, table: RequestTable, preempted: Sequence[str] = ()) -> list[str]:
    """Phase one: decodes, then chunks of started prompts, then waiting prompts, in order. Returns what it preempted."""
    running = schedulable(table, Kind.ONLINE, preempted)
    victims = Victims(builder, running)
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


def _offline_phase(
    builder: BatchBuilder, table: RequestTable, offline_queue: Iterable[Request], preempted: Sequence[str]
) -> list[str]:
    """Phase two: decodes that fit the latency budget, then chunks until one does not fit; then those that are paused,
    those that wait and those that may enter, in order. Returns what it preempted so that started work can go on where
    blocks, not time, are short."""
    held = schedulable(table, Kind.OFFLINE, preempted)
    running = [request for request in held if not request.is_paused]
    victims = Victims(builder, running)
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
    paused = [request for request in held if request.is_paused]
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


def _may_lose(table: RequestTable, request_id: str) -> bool:
    request = table.get(request_id)
    return request is not None and request.is_running and not request.is_in_flight
