"""What every packing keeps to, and packing by arrival."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.view import OfflineView, no_queue
from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.packings import PACKINGS, packing_named
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from shared.scheduling.strategy import PRESETS, Strategy, preset_named
from shared.scheduling.table import RequestTable
from tests.shared.scheduling.deadlines import PACE, held_online, make_state, make_timed_table
from tests.shared.scheduling.factories import (
    held_offline,
    make_decode,
    make_request,
    make_table,
    queue_of,
    step_state,
    tokens,
)

FCFS, TURNS = packing_named("fcfs"), packing_named("round-robin")


@pytest.mark.parametrize("name", PACKINGS)
@given(
    online=held_online(),
    offline=st.lists(held_offline, max_size=12),
    prompts=st.lists(st.integers(1, 400), max_size=6),
    free=st.integers(0, 60),
    max_seqs=st.integers(1, 40),
    last_kind=st.sampled_from([None, *Kind]),
)
def test_no_schedule_breaks_a_limit(
    name: str,
    online: list[Request],
    offline: list[Request],
    prompts: list[int],
    free: int,
    max_seqs: int,
    last_kind: Kind | None,
) -> None:
    queue = [make_request(kind=Kind.OFFLINE, prompt=prompt) for prompt in prompts]
    pace, limits = replace(PACE, last_kind=last_kind), Limits(16, 4000, 512, max_seqs)
    state = make_state(make_timed_table([*online, *offline]), name, pace, limits, num_free_blocks=free)
    planned = packing_named(name).schedule(state, queue_of(queue))
    check(state, planned, queue)
    for request in queue:
        state.table.add(request)
    reconciled = packing_named(name).reconcile(state, planned.entries, planned.preempted)
    check(state, reconciled, [])
    of_plan = {entry.request_id for entry in planned.entries}
    assert all(entry.kind is Kind.ONLINE or entry.request_id in of_plan for entry in reconciled.entries)


def check(state: StepState, schedule: Schedule, queue: list[Request]) -> None:
    by_id = {request.request_id: request for request in (*state.table, *queue)}
    chosen, limits = tokens(schedule), state.limits
    assert len(chosen) == len(schedule.entries) <= limits.max_num_seqs
    assert sum(chosen.values()) <= limits.max_num_batched_tokens
    assert not set(chosen) & set(schedule.preempted) and len(set(schedule.preempted)) == len(schedule.preempted)
    needed = sum(by_id[key].num_new_blocks(count, limits.block_size) for key, count in chosen.items())
    assert needed <= state.num_free_blocks + sum(by_id[key].num_freed_blocks for key in schedule.preempted)
    assert not any(by_id[key].is_paused for key in schedule.preempted)
    assert all(0 < count <= by_id[key].num_remaining_tokens for key, count in chosen.items())
    assert not any(by_id[key].is_in_flight for key in (*chosen, *schedule.preempted))
    kinds = [entry.kind for entry in schedule.entries]
    assert kinds == sorted(kinds), "an offline request before an online one"


@pytest.mark.parametrize("name", PACKINGS)
@given(
    online=held_online(max_size=6),
    offline=st.lists(held_offline, max_size=6),
    free=st.integers(0, 4),
    budget_ms=st.floats(0, 60),
    sizes=st.tuples(st.integers(1, 8), st.integers(1, 300)),
    last_kind=st.sampled_from([None, *Kind]),
)
def test_nobody_loses_its_kv_for_one_that_does_not_run(
    name: str,
    online: list[Request],
    offline: list[Request],
    free: int,
    budget_ms: float,
    sizes: tuple[int, int],
    last_kind: Kind | None,
) -> None:
    """Without the blocks of the last to lose it those that run would not all have theirs."""
    limits, pace = Limits(16, 4000, sizes[1], sizes[0]), replace(PACE, last_kind=last_kind)
    held = [*online, *offline]
    state = step_state(make_timed_table(held), limits, Policy(budget_ms, packing=name), free, pace)
    schedule = packing_named(name).schedule(state, no_queue)
    if not schedule.preempted:
        return
    by_id = {request.request_id: request for request in held}
    needed = sum(by_id[key].num_new_blocks(count, 16) for key, count in tokens(schedule).items())
    assert needed > free + sum(by_id[key].num_blocks for key in schedule.preempted[:-1])


@pytest.mark.parametrize("name", PACKINGS)
@given(
    contexts=st.lists(st.integers(1, 300), min_size=2, max_size=6),
    offline_contexts=st.lists(st.integers(1, 300), max_size=6),
)
def test_what_runs_always_goes_on_without_free_blocks(
    name: str, contexts: list[int], offline_contexts: list[int]
) -> None:
    held = [make_decode(context=context) for context in contexts]
    held += [make_decode(kind=Kind.OFFLINE, context=context) for context in offline_contexts]
    state = make_state(make_timed_table(held), name, num_free_blocks=0)
    assert packing_named(name).schedule(state, no_queue).entries


@pytest.mark.parametrize("name", PACKINGS)
def test_offline_work_never_stalls_on_blocks_that_it_holds_itself(name: str) -> None:
    """Each needs a block, and the latest to start has ten."""
    held = [make_decode(f"off-{n}", Kind.OFFLINE, context=160) for n in range(3)]
    state = make_state(make_timed_table(held), name, num_free_blocks=0)
    schedule = packing_named(name).schedule(state, no_queue)
    assert schedule.preempted == ["off-2"] and tokens(schedule) == {"off-0": 1, "off-1": 1}


@pytest.mark.parametrize("name", PACKINGS)
@pytest.mark.parametrize("kind", Kind)
def test_the_last_that_lacks_a_block_waits_and_keeps_its_kv(name: str, kind: Kind) -> None:
    held = [make_decode(f"r-{n}", kind, context=160) for n in range(2)]
    schedule = packing_named(name).schedule(make_state(make_timed_table(held), name, num_free_blocks=1), no_queue)
    assert schedule.preempted == [] and len(schedule.entries) == 1


RESERVING = [name for name, packing in PACKINGS.items() if packing.keeps_reserve]


def reserving_state(held: list[Request], name: str, num_free: int, num_reserved: int, **pace: Any) -> StepState:
    state = make_state(make_timed_table(held), name, replace(PACE, **pace), num_free_blocks=num_free)
    return dataclasses.replace(state, num_reserved_blocks=num_reserved)


@pytest.mark.parametrize("name", RESERVING)
@pytest.mark.parametrize("from_plan", [False, True])
@pytest.mark.parametrize(
    ("num_reserved", "entered"), [(0, ["a", "b", "c"]), (57, ["a", "b", "c"]), (62, ["a", "b"]), (76, ["a"]), (90, [])]
)
def test_an_offline_request_enters_where_it_leaves_the_reserve(
    name: str, from_plan: bool, num_reserved: int, entered: list[str]
) -> None:
    """100 blocks are free, and each prompt takes 13 of them."""
    held = [make_decode("running", Kind.OFFLINE)]
    queue = [make_request(request_id, Kind.OFFLINE, prompt=200) for request_id in "abc"]
    state = reserving_state(held, name, 100, num_reserved, last_kind=Kind.ONLINE)
    schedule = packing_named(name).schedule(state, queue_of(queue))
    if from_plan:  # the reserve is another by now
        planned = packing_named(name).schedule(dataclasses.replace(state, num_reserved_blocks=0), queue_of(queue))
        for request in queue:
            state.table.add(request)
        schedule = packing_named(name).reconcile(state, planned.entries, planned.preempted)
        assert schedule.num_dropped == 3 - len(entered)
    assert list(tokens(schedule)) == ["running", *entered]


@pytest.mark.parametrize("name", RESERVING)
def test_those_that_run_grow_into_the_reserve(name: str) -> None:
    held = [make_decode("running", Kind.OFFLINE, context=160)]  # it needs a block
    state = reserving_state(held, name, 3, 50, last_kind=Kind.ONLINE)
    assert tokens(packing_named(name).schedule(state, no_queue)) == {"running": 1}


@pytest.mark.parametrize("name", RESERVING)
def test_a_reserve_lets_one_in_where_nothing_else_runs(name: str) -> None:
    queue = [make_request(request_id, Kind.OFFLINE, prompt=200) for request_id in "ab"]
    state = reserving_state([], name, 100, 1000, last_kind=Kind.ONLINE)
    assert list(tokens(packing_named(name).schedule(state, queue_of(queue)))) == ["a"]
    for request in queue:
        state.table.add(request)
    entries = [ScheduledRequest(request.request_id, Kind.OFFLINE, 200) for request in queue]
    assert list(tokens(packing_named(name).reconcile(state, entries, []))) == ["a"]
    state.table.add(make_request("on", prompt=20))
    assert not {"a", "b"} & tokens(packing_named(name).schedule(state, no_queue)).keys()


def test_a_packing_that_lets_nobody_pass_has_no_reserve() -> None:
    with pytest.raises(ValueError, match="packing fcfs lets nobody pass: leave --kv-reserve burst out"):
        Strategy.of("fcfs", kv_reserve="burst")


def arrived(request: Request, arrival_s: float) -> Request:
    request.arrival_s = arrival_s
    return request


def mixed_table() -> RequestTable:
    return make_timed_table(
        [
            arrived(make_decode("on-1"), 3.0),
            arrived(make_decode("off-1", Kind.OFFLINE), 1.0),
            arrived(make_request("on-2", prompt=200), 5.0),
            arrived(make_request("off-2", Kind.OFFLINE, prompt=200), 4.0),
        ]
    )


def test_fcfs_has_no_priorities() -> None:
    queue = [arrived(make_request("off-3", Kind.OFFLINE, prompt=200), 4.5)]
    limits = Limits(16, 4000, 402, 64)
    schedule = FCFS.schedule(make_state(mixed_table(), "fcfs", limits=limits), queue_of(queue))
    assert tokens(schedule) == {"on-1": 1, "off-1": 1, "off-2": 200, "off-3": 200}
    late_queue = [arrived(make_request("off-3", Kind.OFFLINE, prompt=200), 6.0)]
    schedule = FCFS.schedule(make_state(mixed_table(), "fcfs", limits=limits), queue_of(late_queue))
    assert tokens(schedule) == {"on-1": 1, "on-2": 200, "off-1": 1, "off-2": 200}


def test_fcfs_takes_blocks_from_the_last_to_arrive_whatever_its_kind() -> None:
    held = [
        arrived(make_decode("on", context=160), 2.0),
        arrived(make_decode("off-old", Kind.OFFLINE, context=160), 1.0),
        arrived(make_decode("off-new", Kind.OFFLINE, context=160), 3.0),
    ]
    schedule = FCFS.schedule(make_state(make_timed_table(held), "fcfs", num_free_blocks=0), no_queue)
    assert schedule.preempted == ["off-new"] and list(tokens(schedule)) == ["on", "off-old"]
    held[0].arrival_s = 4.0
    schedule = FCFS.schedule(make_state(make_timed_table(held), "fcfs", num_free_blocks=0), no_queue)
    assert schedule.preempted == ["on"] and list(tokens(schedule)) == ["off-old", "off-new"]


def test_turns_alternate_and_are_left_to_the_other_where_there_is_nothing_to_run() -> None:
    table, pace, served = mixed_table(), PACE, []
    for _ in range(4):
        schedule = TURNS.schedule(make_state(table, "round-robin", pace), no_queue)
        served.append(list(tokens(schedule)))
        pace = pace.after(schedule, 256)
    assert served == [["on-1", "on-2"], ["off-1", "off-2"]] * 2
    online_only = make_timed_table([make_decode("on")])
    assert list(
        tokens(TURNS.schedule(make_state(online_only, "round-robin", replace(PACE, last_kind=Kind.ONLINE)), no_queue))
    ) == ["on"]


def test_in_an_offline_turn_a_plan_bounds_what_runs() -> None:
    state = make_state(mixed_table(), "round-robin", replace(PACE, last_kind=Kind.ONLINE))
    planned = TURNS.schedule(state, no_queue)
    assert list(tokens(planned)) == ["off-1", "off-2"]
    state.table.remove("off-1")
    state.table.add(make_decode("off-9", Kind.OFFLINE))
    assert list(tokens(TURNS.reconcile(state, planned.entries, []))) == ["off-2"]


def test_names_are_checked() -> None:
    assert all(packing_named(preset.packing) for preset in PRESETS.values())
    with pytest.raises(ValueError, match="two-phase, deadline, fcfs, round-robin"):
        packing_named("lifo")
    with pytest.raises(ValueError, match="leave --online-order vtc out"):
        Strategy.of("bros", online_order="vtc")
    with pytest.raises(ValueError, match="packing fcfs works with offline order fcfs or none, not with psm"):
        Strategy.of("fcfs", offline_order="psm")
    with pytest.raises(ValueError, match="packing deadline works with latency budget deadline, not with profiled"):
        Strategy.of("hygen", packing="deadline")
    assert Strategy.of("hygen", online_order="vtc").online_order == "vtc"


def test_offline_work_waits_for_a_model_to_keep_deadlines_with() -> None:
    assert not preset_named("bros").policy(None, model_is_known=False).offline_enabled
    assert preset_named("bros").policy(None).offline_enabled
    assert preset_named("fcfs").policy(None, model_is_known=False).offline_enabled


@pytest.mark.parametrize("name", ["two-phase", "kv-aware"])
@pytest.mark.parametrize(("num_free_blocks", "asks"), [(2, False), (3, True)])
def test_nobody_is_drawn_where_no_block_is_left_to_enter_with(name: str, num_free_blocks: int, asks: bool) -> None:
    """Two that run keep one each, and one is reserved."""
    held = [make_decode(f"off-{number}", Kind.OFFLINE) for number in range(2)]
    state = step_state(make_table(make_decode("on"), *held), num_free_blocks=num_free_blocks)
    views: list[OfflineView] = []

    def queue(view: OfflineView) -> Iterator[Request]:
        views.append(view)
        return iter(())

    schedule = packing_named(name).schedule(dataclasses.replace(state, num_reserved_blocks=1), queue)
    assert list(tokens(schedule)) == ["on", "off-0", "off-1"] and bool(views) is asks


def test_the_reserve_is_left_where_anything_runs() -> None:
    runs, paused = make_decode("runs", Kind.OFFLINE, context=90), make_decode("paused", Kind.OFFLINE, context=90)
    paused.num_kept_blocks = paused.num_blocks
    for held, num_left in (([], 0), ([paused], 0), ([runs], 7), ([paused, runs], 7), ([make_request(prompt=8)], 7)):
        state = dataclasses.replace(step_state(make_table(*held)), num_reserved_blocks=7)
        builder = BatchBuilder(state.limits, state.model, 1000.0, state.num_free_blocks)
        assert state.num_blocks_to_leave(builder) == num_left, held


def test_an_order_sees_the_step_and_all_that_runs() -> None:
    online, offline = make_decode("on", context=90), make_decode("off", Kind.OFFLINE, context=50)
    state = step_state(make_table(online, offline), num_free_blocks=33)
    builder = BatchBuilder(state.limits, state.model, 1000.0, state.num_free_blocks)
    view = state.view(builder)
    assert list(view.running_online) == [online] and list(view.running_offline) == [offline]
    assert (view.reader, view.num_free_blocks, view.budget_ms) == (None, 33, 1000.0)
    assert view.cache is state.cache and view.model is state.model and view.features is builder.features
