"""BROS Alg. 1: who is in the batch, how long it takes, and when offline requests enter."""

from copy import copy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from shared.latency.features import BatchFeatures
from shared.scheduling.limits import Limits
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from tests.shared.scheduling.deadlines import (
    LIMITS,
    PACE,
    can_meet,
    due,
    held_online,
    left_ms,
    make_state,
    make_timed_table,
)
from tests.shared.scheduling.factories import (
    EXACT,
    MODEL,
    features_of,
    half_cached,
    held_offline,
    make_decode,
    make_request,
    queue_of,
    tokens,
)
from tests.shared.scheduling.naive_deadline import NaiveDeadline

PACKING = packing_named("deadline")
LIMITS_1024 = replace(LIMITS, max_num_batched_tokens=1024)
ROUNDING_MS = 1e-6


def pack(state: StepState, queue: list[Request] | None = None) -> Schedule:
    return PACKING.schedule(state, queue_of(queue or []))


def decodes_ms(*contexts: int) -> float:
    return MODEL.predict_ms(BatchFeatures(0, 0, sum(contexts), len(contexts)))


offline_decodes = st.lists(st.integers(1, 300), max_size=6)
queues = st.lists(st.integers(1, 400), max_size=6)


@given(held_online(), offline_decodes, queues, st.integers(1, 40))
def test_the_most_urgent_is_served_and_the_step_ends_in_time(
    online: list[Request], contexts: list[int], prompts: list[int], size: int
) -> None:
    offline = [make_decode(kind=Kind.OFFLINE, context=context) for context in contexts]
    state = make_state(make_timed_table([*online, *offline]), pace=structs.replace(PACE, batch_size=size))
    queue = [make_request(kind=Kind.OFFLINE, prompt=prompt) for prompt in prompts]
    schedule = pack(state, queue)
    by_id = {request.request_id: request for request in (*online, *offline, *queue)}
    ready = [request for request in online if not request.is_in_flight]
    in_time = [request for request in ready if can_meet(request, state)]
    chosen = tokens(schedule)
    assert len(chosen) == len(schedule.entries) <= size
    assert schedule.latency_ms == pytest.approx(MODEL.predict_ms(features_of(schedule.entries, by_id)))
    if in_time:
        limit_ms = min(left_ms(request, state.pace) for request in in_time)
        assert schedule.latency_ms <= limit_ms + ROUNDING_MS
        assert any(request.request_id in chosen for request in in_time if left_ms(request, state.pace) == limit_ms)
    elif ready:
        latest = min(left_ms(request, state.pace) for request in ready)
        assert any(request.request_id in chosen for request in ready if left_ms(request, state.pace) == latest)
        assert not schedule.hit_time_limit
    if len(in_time) < len(ready):
        assert all(entry.kind is Kind.ONLINE for entry in schedule.entries), "an offline request before a late one"
    assert schedule.preempted == []


@given(held_online(), offline_decodes, queues, st.integers(1, 40))
def test_the_same_state_gives_the_same_schedule_and_stays_as_it_was(
    online: list[Request], contexts: list[int], prompts: list[int], size: int
) -> None:
    offline = [make_decode(kind=Kind.OFFLINE, context=context) for context in contexts]
    queue = [make_request(kind=Kind.OFFLINE, prompt=prompt) for prompt in prompts]
    state = make_state(make_timed_table([*online, *offline]), pace=structs.replace(PACE, batch_size=size))
    before = [copy(request) for request in (*state.table, *queue)]
    first = pack(state, queue)
    assert pack(state, queue) == first
    assert [*state.table, *queue] == before
    reconciled = PACKING.reconcile(state, first.entries, first.preempted)
    assert PACKING.reconcile(state, first.entries, first.preempted) == reconciled


@given(st.floats(12.0, 300.0), st.lists(st.one_of(st.integers(1, 300), st.integers(1, 5000)), min_size=1, max_size=8))
def test_offline_requests_enter_exactly_as_long_as_there_is_time(in_ms: float, contexts: list[int]) -> None:
    online = due(make_decode("on", context=100), in_ms)
    offline = [make_decode(f"off-{n}", Kind.OFFLINE, context) for n, context in enumerate(contexts)]
    chosen = tokens(pack(make_state(make_timed_table([online, *offline]))))
    fitting = 0
    while fitting < len(contexts) and decodes_ms(101, *(c + 1 for c in contexts[: fitting + 1])) <= in_ms:
        fitting += 1
    assert list(chosen) == ["on", *(f"off-{n}" for n in range(fitting))]


def test_without_online_requests_the_tokens_alone_bound_a_step() -> None:
    queue = [make_request(f"off-{n}", Kind.OFFLINE, prompt=200) for n in range(4)]
    assert tokens(pack(make_state(make_timed_table([])), queue)) == {"off-0": 200, "off-1": 200, "off-2": 112}


def test_decodes_started_prompts_and_waiting_ones_are_ordered_together() -> None:
    waiting = due(make_request("waiting", prompt=30), 200.0)
    started = due(make_request("started", prompt=40, computed=16), 220.0)
    decode = due(make_decode("decode"), 180.0)
    table = make_timed_table([decode, started, waiting])
    assert list(tokens(pack(make_state(table)))) == ["decode", "waiting", "started"]
    assert list(tokens(pack(make_state(table, pace=structs.replace(PACE, batch_size=2))))) == ["decode", "waiting"]


def test_a_chunk_is_as_long_as_the_first_deadline_allows() -> None:
    decode = due(make_decode("decode", context=99), 61.0)
    waiting = due(make_request("waiting", prompt=300), 390.0)
    schedule = pack(make_state(make_timed_table([decode, waiting])))
    left = 61.0 - decodes_ms(100) - 0.5  # the prefill itself; each of its tokens takes 0.5
    assert tokens(schedule) == {"decode": 1, "waiting": int(left / 0.5)}
    assert not schedule.hit_time_limit


def test_an_online_request_left_out_for_lack_of_time_is_told() -> None:
    tight, other = due(make_decode("tight", context=99), decodes_ms(100) + 0.5), due(make_decode("other"), 150.0)
    schedule = pack(make_state(make_timed_table([other, tight])))
    assert list(tokens(schedule)) == ["tight"] and schedule.hit_time_limit


def test_who_is_late_comes_after_those_that_can_be_saved_and_runs_all_the_same() -> None:
    late = due(make_decode("late"), -3000.0)
    later = due(make_request("later", prompt=100), -5000.0)
    saved = due(make_decode("saved"), 150.0)
    offline = make_decode("off", Kind.OFFLINE)
    table = make_timed_table([late, saved, offline, later])
    assert list(tokens(pack(make_state(table)))) == ["saved", "later", "late"]
    table.remove("saved")
    schedule = pack(make_state(table))
    assert tokens(schedule) == {"later": 100, "late": 1}


@pytest.mark.parametrize(("num_free", "running"), [(0, {"holds": 1}), (2, {"holds": 1}), (3, {"waits": 20, "off": 1})])
def test_one_that_waits_for_blocks_keeps_nobody_from_running_who_has_them(
    num_free: int, running: dict[str, int]
) -> None:
    """It would be in time alone. Who holds the blocks takes longer than that, and nothing else would ever free them."""
    holds, waits = due(make_decode("holds", context=30_001), 150.0), due(make_request("waits", prompt=20), 30.0)
    table = make_timed_table([holds, waits, make_decode("off", Kind.OFFLINE, context=1)])
    assert tokens(pack(replace(make_state(table, num_free_blocks=num_free), num_offline_blocks=0))) == running


def test_a_late_request_without_blocks_does_not_keep_offline_work_from_running() -> None:
    late = due(make_request("late", prompt=900), -100.0)
    offline = make_decode("off", Kind.OFFLINE, context=100)
    state = make_state(make_timed_table([late, offline]), num_free_blocks=2)
    assert tokens(pack(state)) == {"off": 1}


def test_who_waits_enters_where_those_that_run_can_grow() -> None:
    """All of them by a block, where it is late; where it can still be in time, so many as the policy has it."""
    running = [due(make_decode(f"on-{n}", context=100), 150.0) for n in range(8)]
    late, in_time = due(make_request("late", prompt=160), 0.0), due(make_request("in-time", prompt=160), 390.0)
    soon = due(make_request("soon", prompt=160), 0.5)
    cases = ((late, 0.25, 18), (soon, 0.25, 12), (in_time, 0.25, 12), (in_time, 1.0, 18), (in_time, 0.0, 10))
    for waiting, growth_room, least in cases:
        for free in (least - 1, least):
            state = make_state(make_timed_table([*running, waiting]), num_free_blocks=free)
            state = replace(state, policy=replace(state.policy, growth_room=growth_room))
            assert (waiting.request_id in tokens(pack(state))) == (free == least)


@pytest.mark.parametrize("has_lost_kv", [False, True])
def test_nobody_who_is_late_passes_one_that_does_not_fit(has_lost_kv: bool) -> None:
    running, large = due(make_decode("running", context=100), -20.0), due(make_request("large", prompt=800), -100.0)
    large.was_admitted = has_lost_kv
    small = [due(make_request(f"small-{n}", prompt=16), 0.0) for n in range(2)]
    for free, entered in ((20, ["running"]), (60, ["large", "running", "small-0", "small-1"])):
        state = make_state(make_timed_table([running, large, *small]), num_free_blocks=free, limits=LIMITS_1024)
        assert list(tokens(pack(state))) == entered


def test_a_full_batch_lets_an_offline_request_in_for_the_one_that_can_wait_longest() -> None:
    urgent, patient = due(make_decode("urgent"), 100.0), due(make_decode("patient"), 180.0)
    offline = [make_decode("off-0", Kind.OFFLINE), make_decode("off-1", Kind.OFFLINE)]
    state = make_state(make_timed_table([patient, urgent, *offline]), pace=structs.replace(PACE, batch_size=2))
    schedule = pack(state)
    assert list(tokens(schedule)) == ["urgent", "off-0"]
    assert schedule.latency_ms == pytest.approx(decodes_ms(101, 101))


def test_nobody_is_replaced_who_would_miss_a_deadline() -> None:
    """The step takes 12.2 ms, the usual one 20."""
    urgent, patient = due(make_decode("urgent"), 31.0), due(make_decode("patient"), 32.0)
    offline = make_decode("off", Kind.OFFLINE)
    table = make_timed_table([patient, urgent, offline])
    state = make_state(table, pace=structs.replace(PACE, batch_size=2))
    assert list(tokens(pack(state))) == ["urgent", "patient"]
    assert list(tokens(pack(replace(state, pace=structs.replace(state.pace, mean_step_ms=19.0))))) == ["urgent", "off"]


def test_a_prompt_is_not_put_off_for_offline_work() -> None:
    urgent, prompt = due(make_decode("urgent"), 100.0), due(make_request("prompt", prompt=20), 390.0)
    state = make_state(
        make_timed_table([urgent, make_decode("off", Kind.OFFLINE), prompt]), pace=structs.replace(PACE, batch_size=2)
    )
    assert tokens(pack(state)) == {"urgent": 1, "prompt": 20}


def test_a_chunk_of_less_than_a_block_replaces_nobody() -> None:
    """Time for three decodes and 10 tokens of a prompt."""
    online = [due(make_decode(f"on-{n}"), decodes_ms(101, 101) + 0.5 + 10 * 0.5 + n * 100.0) for n in range(2)]
    prompt = make_request("off", Kind.OFFLINE, prompt=200)
    state = make_state(make_timed_table(online), limits=replace(LIMITS, max_num_seqs=2))
    assert list(tokens(pack(state, [prompt]))) == ["on-0", "on-1"]
    short = make_request("short", Kind.OFFLINE, prompt=10)
    assert tokens(pack(state, [short])) == {"on-0": 1, "short": 10}


def test_online_requests_take_the_blocks_of_offline_ones() -> None:
    offline = [make_decode(f"off-{n}", Kind.OFFLINE, context=160) for n in range(3)]  # 10 blocks each
    online = due(make_request("on", prompt=320), 390.0)  # needs 20
    schedule = pack(make_state(make_timed_table([*offline, online]), num_free_blocks=5))
    assert tokens(schedule)["on"] == 320
    assert schedule.preempted == ["off-2", "off-1"]


def test_where_nothing_is_left_the_online_request_that_can_wait_longest_loses_its_kv() -> None:
    names = ("middle", "patient", "urgent")
    held = [due(make_decode(name, context=160), in_ms) for name, in_ms in zip(names, (120.0, 190.0, 90.0), strict=True)]
    schedule = pack(make_state(make_timed_table(held), num_free_blocks=0))
    assert schedule.preempted == ["patient"]
    assert list(tokens(schedule)) == ["urgent", "middle"]


def test_reconciling_packs_anew_with_the_offline_requests_of_the_plan() -> None:
    decode = due(make_decode("decode"), 50.0)  # too little to be left out of this step
    offline = [make_decode(f"off-{n}", Kind.OFFLINE) for n in range(3)]
    table = make_timed_table([decode, *offline])
    plan = [ScheduledRequest("decode", Kind.ONLINE, 1)]
    plan += [ScheduledRequest(request.request_id, Kind.OFFLINE, 1) for request in offline[:2]]
    state = make_state(table)
    assert tokens(PACKING.reconcile(state, plan, [])) == {"decode": 1, "off-0": 1, "off-1": 1}
    table.add(due(make_request("arrived", prompt=40), decodes_ms(101) + 40 * 0.5 + 0.5 + 1.2))
    schedule = PACKING.reconcile(state, [*plan, ScheduledRequest("gone", Kind.OFFLINE, 1)], [])
    assert tokens(schedule) == {"arrived": 40, "decode": 1, "off-0": 1}
    assert schedule.num_dropped == 1


def test_a_plans_chunk_is_not_exceeded() -> None:
    prompt = make_request("off", Kind.OFFLINE, prompt=200, computed=16)
    state = make_state(make_timed_table([prompt]))
    assert tokens(PACKING.reconcile(state, [ScheduledRequest("off", Kind.OFFLINE, 50)], [])) == {"off": 50}


def test_paused_requests_go_on_by_what_has_to_come_back_before_others_enter() -> None:
    held = [make_decode(f"off-{n}", Kind.OFFLINE, context=100) for n in range(3)]
    for request, missing in zip(held, (40, 10, 0), strict=True):
        request.num_kept_blocks, request.num_missing_slots = (None, 0) if missing == 0 else (0, missing)
    queue = [make_request("new", Kind.OFFLINE, prompt=20)]
    assert list(tokens(pack(make_state(make_timed_table(held)), queue))) == ["off-2", "off-1", "off-0", "new"]


@pytest.mark.parametrize("num_free", [0, 1])
def test_a_decode_without_a_block_does_not_keep_a_prompt_that_began_before_from_going_on(num_free: int) -> None:
    """They would stand still for ever: it may take no blocks of that one, which ends first."""
    prompt, decode = (
        make_request("prompt", Kind.OFFLINE, prompt=64, computed=20),
        make_decode("decode", Kind.OFFLINE, 16),
    )
    schedule = pack(make_state(make_timed_table([prompt, decode]), num_free_blocks=num_free))
    assert tokens(schedule) == ({"decode": 1, "prompt": 12} if num_free else {"prompt": 12})


def test_no_offline_work_where_the_policy_has_none() -> None:
    table = make_timed_table([due(make_decode("on"), 150.0), make_decode("off", Kind.OFFLINE)])
    assert list(tokens(pack(make_state(table, offline_enabled=False)))) == ["on"]


@given(
    online=held_online(),
    offline=st.lists(st.tuples(held_offline, st.booleans()), max_size=6),
    prompts=st.lists(st.integers(1, 200), max_size=4),
    free=st.integers(0, 40),
    sizes=st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 400)),
    growth_room=st.sampled_from([0.0, 0.5, 1.0]),
    num_reserved=st.integers(0, 8),
    num_planned=st.integers(0, 6),
)
def test_it_packs_as_the_algorithm_does(
    online: list[Request],
    offline: list[tuple[Request, bool]],
    prompts: list[int],
    free: int,
    sizes: tuple[int, int, int],
    growth_room: float,
    num_reserved: int,
    num_planned: int,
) -> None:
    for request, in_flight in offline:
        request.num_in_flight_tokens = int(in_flight and request.is_running and not request.is_paused)
    held, queue = (
        [request for request, _ in offline],
        [make_request(kind=Kind.OFFLINE, prompt=each) for each in prompts],
    )
    limits = Limits(16, 4000, max_num_batched_tokens=sizes[2], max_num_seqs=sizes[1])
    pace = structs.replace(PACE, batch_size=sizes[0])
    state = make_state(make_timed_table([*online, *held]), pace=pace, limits=limits, num_free_blocks=free)
    policy = replace(state.policy, growth_room=growth_room)
    cache = half_cached([*online, *queue])
    state = replace(state, model=EXACT, cache=cache, num_reserved_blocks=num_reserved, policy=policy)
    check_as_naive(pack(state, queue), NaiveDeadline(state, queue))
    plan = [ScheduledRequest(each.request_id, Kind.OFFLINE, 1 + each.num_tokens // 2) for each in held[:num_planned]]
    fitted, naive = PACKING.reconcile(state, plan, []), NaiveDeadline(state, [], plan)
    check_as_naive(fitted, naive)
    left_out = [each for each in held[:num_planned] if not each.is_in_flight and each.request_id not in tokens(fitted)]
    assert fitted.num_dropped == len(left_out)


def check_as_naive(schedule: Schedule, naive: NaiveDeadline) -> None:
    batch = naive.pack()
    assert schedule.entries == batch.entries
    assert schedule.preempted == [request.request_id for request in batch.lost]
    assert (schedule.latency_ms, schedule.hit_time_limit) == (batch.ms(), naive.hit_time_limit)
