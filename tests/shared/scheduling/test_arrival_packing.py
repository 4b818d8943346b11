"""Packing by arrival against a slow reader: first come, first served, and turns."""

import dataclasses
import math
from collections.abc import Iterator
from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.scheduling.limits import Limits
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.request import OFFLINE, ONLINE, Kind, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from tests.shared.scheduling.deadlines import PACE, held_online, make_state, make_timed_table
from tests.shared.scheduling.factories import EXACT, half_cached, held_offline, make_request, queue_of
from tests.shared.scheduling.naive_batch import NaiveBatch, at_most, offline_work

Plan = list[ScheduledRequest] | None


def fill(
    state: StepState, running: list[Request], waiting: list[Request], may_lose: list[Request], plan: Plan
) -> NaiveBatch:
    """Until one that waits does not fit."""
    batch = NaiveBatch(state, math.inf, state.num_free_blocks, state.limits.max_num_seqs)
    for request in running:
        if request not in batch.lost:
            batch.make_room(request, may_lose, partial(batch.add, request, at_most(request, plan)))
    for request in waiting if not batch.lost else ():
        num_reserved = batch.num_reserved if request.kind is OFFLINE else 0
        if not batch.fits_whole(request, num_reserved) or not batch.add(request, at_most(request, plan)):
            break
    batch.chosen.sort(key=lambda each: each[0].kind)
    return batch


def ready(state: StepState, kind: Kind) -> list[Request]:
    return [each for each in state.table.running(kind).values() if not (each.is_in_flight or each.is_paused)]


def by_arrival(online: list[Request], offline: list[Request]) -> Iterator[Request]:
    """Whoever of the first two came first; ties to the online one."""
    online, offline = list(online), list(offline)
    while online or offline:
        is_online = not offline or (online and online[0].arrival_s <= offline[0].arrival_s)
        yield (online if is_online else offline).pop(0)


def naive_fcfs(state: StepState, queue: list[Request], plan: Plan) -> NaiveBatch:
    offline, waiting = offline_work(state, queue, plan)
    running = sorted([*ready(state, ONLINE), *offline], key=lambda each: each.arrival_s)
    may_lose = sorted([*ready(state, ONLINE), *ready(state, OFFLINE)], key=lambda each: each.arrival_s)
    allowed = waiting if state.policy.offline_enabled else []
    return fill(state, running, list(by_arrival(list(state.table.waiting(ONLINE).values()), allowed)), may_lose, plan)


def naive_turns(state: StepState, queue: list[Request], plan: Plan) -> NaiveBatch:
    online, (offline, waiting) = ready(state, ONLINE), offline_work(state, queue, plan)
    of_online = fill(state, online, list(state.table.waiting(ONLINE).values()), [*online, *ready(state, OFFLINE)], plan)
    of_offline = fill(state, offline, waiting, ready(state, OFFLINE), plan)
    if not state.policy.offline_enabled:
        return of_online
    first, second = (of_offline, of_online) if state.pace.last_kind is ONLINE else (of_online, of_offline)
    return first if first.chosen else second


@given(
    online=held_online(max_size=6),
    offline=st.lists(st.tuples(held_offline, st.booleans()), max_size=6),
    prompts=st.lists(st.integers(1, 200), max_size=4),
    arrivals=st.lists(st.integers(0, 9), min_size=16, max_size=16),
    free=st.integers(0, 40),
    sizes=st.tuples(st.integers(1, 12), st.integers(1, 400)),
    num_reserved=st.integers(0, 8),
    last_kind=st.sampled_from([None, *Kind]),
    offline_enabled=st.sampled_from([True, True, False]),
    num_planned=st.integers(0, 6),
)
def test_by_arrival_and_in_turns(
    online: list[Request],
    offline: list[tuple[Request, bool]],
    prompts: list[int],
    arrivals: list[int],
    free: int,
    sizes: tuple[int, int],
    num_reserved: int,
    last_kind: Kind | None,
    offline_enabled: bool,
    num_planned: int,
) -> None:
    for request, in_flight in offline:
        request.num_in_flight_tokens = int(in_flight and request.is_running and not request.is_paused)
    held, queue = [each for each, _ in offline], [make_request(kind=OFFLINE, prompt=each) for each in prompts]
    for request, arrival_s in zip([*online, *held, *queue], arrivals, strict=False):
        request.arrival_s = float(arrival_s)
    pace, limits = replace(PACE, last_kind=last_kind), Limits(16, 4000, sizes[1], sizes[0])
    plan = [ScheduledRequest(each.request_id, OFFLINE, 1 + each.num_tokens // 2) for each in held[:num_planned]]
    for name, naive in (("fcfs", naive_fcfs), ("round-robin", naive_turns)):
        table = make_timed_table([*online, *held])
        state = make_state(table, name, pace, limits, num_free_blocks=free, offline_enabled=offline_enabled)
        cache = half_cached([*online, *queue])
        state = dataclasses.replace(state, model=EXACT, cache=cache, num_reserved_blocks=num_reserved)
        check_as_naive(packing_named(name).schedule(state, queue_of(queue)), naive(state, queue, None))
        fitted = packing_named(name).reconcile(state, plan, [])
        check_as_naive(fitted, naive(state, [], plan))
        chosen = {entry.request_id for entry in fitted.entries}
        left_out = [each for each in held[:num_planned] if not each.is_in_flight and each.request_id not in chosen]
        assert fitted.num_dropped == len(left_out)


def check_as_naive(schedule: Schedule, batch: NaiveBatch) -> None:
    assert schedule.entries == batch.entries
    assert schedule.preempted == [request.request_id for request in batch.lost]
    assert schedule.latency_ms == batch.ms()
