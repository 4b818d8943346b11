"""Packing by arrival, without SLOs: what BROS is compared with (sections 2.2 and 7.1)."""

import heapq
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from operator import attrgetter

from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.packing import OfflineWork, OneWayPacking, StepState
from shared.scheduling.packing.victims import Victims, schedulable
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import Schedule
from shared.scheduling.table import RequestTable

_arrival_s = attrgetter("arrival_s")


class FcfsPacking(OneWayPacking):
    """First come, first served over both kinds, as vLLM does: what runs goes on, then those that wait enter in the
    order of their arrival, ties to online ones. The latest to arrive loses its KV where blocks are short. Offline
    requests of the queue must be in the order of their arrival."""

    uses_time = False
    keeps_plans = False  # an offline request that did not fit held up the online ones behind it
    keeps_reserve = False  # likewise: they would wait for room that is left for them
    latency_budgets: tuple[str, ...] = ("none",)
    offline_orders: tuple[str, ...] | None = ("fcfs", "none")  # merged with online requests by their arrival

    def pack(self, state: StepState, offline: OfflineWork) -> Schedule:
        table = state.table
        online = schedulable(table, Kind.ONLINE)
        every = sorted(chain(online, _not_paused(table)), key=_arrival_s)
        running = sorted(chain(online, offline.running), key=_arrival_s)

        def waiting(builder: BatchBuilder) -> Iterable[Request]:
            offline_waiting = offline.waiting(state, builder) if state.policy.offline_enabled else ()
            return heapq.merge(table.waiting(Kind.ONLINE).values(), offline_waiting, key=_arrival_s)

        return _fill(state, running, waiting, every, offline)


class RoundRobinPacking(OneWayPacking):
    """Online and offline batches in turns, first come, first served within each (BROS section 2.2, Fig. 4). Whose turn
    it is and has nothing to run leaves it to the other. Online requests that run may take the blocks of offline
    ones."""

    uses_time = False
    keeps_plans = True
    latency_budgets: tuple[str, ...] = ("none",)

    def pack(self, state: StepState, offline: OfflineWork) -> Schedule:
        table = state.table
        online = schedulable(table, Kind.ONLINE)
        other = _not_paused(table)

        def turn(kind: Kind) -> Schedule:
            if kind is Kind.ONLINE:
                waiting = table.waiting(Kind.ONLINE).values()
                return _fill(state, online, lambda builder: waiting, [*online, *other], offline)
            return _fill(state, offline.running, partial(offline.waiting, state), other, offline)

        kinds = [Kind.OFFLINE, Kind.ONLINE] if state.pace.last_kind is Kind.ONLINE else [Kind.ONLINE, Kind.OFFLINE]
        if not state.policy.offline_enabled:
            kinds = [Kind.ONLINE]
        made = turn(kinds[0])
        return made if made.entries or len(kinds) == 1 else turn(kinds[1])


def _fill(
    state: StepState,
    running: Iterable[Request],
    waiting: Callable[[BatchBuilder], Iterable[Request]],
    may_lose: list[Request],
    offline: OfflineWork,
) -> Schedule:
    """Those that run, then those that wait, until one does not fit. ``may_lose``: the last loses its KV first."""
    builder = BatchBuilder(
        state.limits, state.model, state.policy.latency_budget_ms, state.num_free_blocks, state.cache
    )
    victims = Victims(builder, may_lose)

    def add(request: Request) -> bool:
        return builder.try_add(request, bounded=False, at_most=offline.at_most.get(request.request_id))

    for request in running:
        if request.request_id not in victims.lost:
            victims.make_room(request, add)
    if not victims.lost:  # a waiting prompt must not enter on blocks taken from a started one
        for request in waiting(builder):
            num_left = state.num_blocks_to_leave(builder) if request.kind is Kind.OFFLINE else 0
            if not builder.fits_whole(request, num_left) or not add(request):
                break
    entries = sorted(builder.entries, key=lambda entry: entry.kind)  # online first, each kind in its order
    return Schedule(entries, victims.lost, builder.latency_ms)


def _not_paused(table: RequestTable) -> list[Request]:
    """Offline requests that have KV to lose."""
    return [request for request in schedulable(table, Kind.OFFLINE) if not request.is_paused]
