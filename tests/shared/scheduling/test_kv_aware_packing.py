"""Echo's packing: Eq. 4 against a slow reader, SLOs, and whose KV goes."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.scheduling.kv.request_cache import Found
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.view import no_queue
from shared.scheduling.packing.pace import PROBE_STEPS, Pace
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.policy import Benefit, Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.strategy import Strategy, preset_named
from tests.shared.scheduling.deadlines import NOW_MS, PACE, due, held_online, left_ms, make_timed_table
from tests.shared.scheduling.factories import (
    EXACT,
    CacheOf,
    features_of,
    held_offline,
    make_decode,
    make_request,
    make_table,
    prompt_lengths,
    queue_of,
    step_state,
    tokens,
)
from tests.shared.scheduling.naive_batch import NaiveBatch
from tests.shared.scheduling.naive_kv_aware import NaiveChanges

KV_AWARE, TWO_PHASE = packing_named("kv-aware"), packing_named("two-phase")
OFFLINE = Kind.OFFLINE


@given(
    online=held_online(),
    offline=st.lists(held_offline, max_size=8),
    prompts=st.lists(st.integers(1, 200), max_size=4),
    free=st.integers(0, 60),
    budget_ms=st.sampled_from([0.0, 30.0, 100.0, math.inf]),
)
def test_without_deadlines_online_work_is_as_in_two_phases(
    online: list[Request], offline: list[Request], prompts: list[int], free: int, budget_ms: float
) -> None:
    for request in online:
        request.deadline_ms = math.inf
    state = step_state(make_timed_table([*online, *offline]), policy=Policy(budget_ms), num_free_blocks=free)
    queue = queue_of([make_request(kind=OFFLINE, prompt=prompt) for prompt in prompts])
    ours, theirs = KV_AWARE.schedule(state, queue), TWO_PHASE.schedule(state, queue)
    own, other = ([each for each in made.entries if each.kind is Kind.ONLINE] for made in (ours, theirs))
    assert own == other
    assert ours == KV_AWARE.schedule(state, queue)
    ids = {request.request_id for request in online}
    assert [each for each in ours.preempted if each in ids] == [each for each in theirs.preempted if each in ids]


@given(
    online=held_online(),
    later_ms=st.sampled_from([200.0, 400.0, 1000.0]),
    offline=st.lists(held_offline, min_size=1, max_size=8),
    prompts=st.lists(st.integers(1, 200), max_size=4),
)
def test_offline_work_ends_before_the_first_deadline(
    online: list[Request], later_ms: float, offline: list[Request], prompts: list[int]
) -> None:
    assume(online)
    for request in online:
        request.deadline_ms += later_ms
    table = make_timed_table([*online, *offline])
    state = step_state(table, pace=PACE, policy=Policy(packing="kv-aware"), num_free_blocks=500)
    schedule = KV_AWARE.schedule(state, queue_of([make_request(kind=OFFLINE, prompt=prompt) for prompt in prompts]))
    assume(schedule.entries and schedule.entries[-1].kind is OFFLINE)
    in_batch = [table.get(each.request_id) for each in schedule.entries if each.kind is Kind.ONLINE]
    assert all(left_ms(each, PACE) >= schedule.latency_ms - 1e-9 for each in in_batch if each is not None)
    decodes = [each.request_id for each in table.running(Kind.ONLINE).values() if each.is_decode]
    assert {each for each in decodes if not table.get(each).is_in_flight} <= set(tokens(schedule))  # type: ignore[union-attr]


def in_time(state: StepState) -> tuple[list[tuple[str, int]], float]:
    """The online part as a slow reader packs it, by whole batches, where blocks are there for all; and what the step
    may take with offline work."""
    held = [request for request in state.table if request.kind is Kind.ONLINE and not request.is_in_flight]
    features, chosen = BatchFeatures(), list[tuple[str, int]]()
    num_left = state.limits.max_num_batched_tokens
    decodes = [request for request in held if request.is_decode]
    for request in decodes:
        features.add_decode(request.num_computed_tokens + 1)
        chosen.append((request.request_id, 1))
        num_left -= 1
    lefts_ms = [left_ms(request, state.pace) for request in decodes if request.deadline_ms < math.inf]
    in_time_ms = [each for each in lefts_ms if each >= EXACT.predict_ms(features)]
    limit_ms, is_late = min(in_time_ms, default=math.inf), len(in_time_ms) < len(lefts_ms)

    def end_ms(request: Request, num_tokens: int) -> float:
        after = BatchFeatures(*features.sums)
        after.add_scheduled(num_tokens, request.num_computed_tokens)
        return EXACT.predict_ms(after)

    for request in (each for each in held if not each.is_decode):
        most = min(request.num_remaining_tokens, num_left)
        if not most:
            break
        if end_ms(request, most) <= left_ms(request, state.pace):
            limit_ms = min(limit_ms, left_ms(request, state.pace))
        is_late = is_late or end_ms(request, most) > left_ms(request, state.pace)
        num_tokens = max((n for n in range(1, most + 1) if end_ms(request, n) <= limit_ms), default=0)
        if num_tokens:
            features.add_scheduled(num_tokens, request.num_computed_tokens)
            chosen.append((request.request_id, num_tokens))
            num_left -= num_tokens
        elif not request.is_running:
            break
    return chosen, 0.0 if is_late else limit_ms


@given(
    online=held_online(),
    no_deadline=st.lists(st.booleans(), min_size=12, max_size=12),
    contexts=st.lists(st.integers(1, 300), max_size=4),
    max_tokens=st.integers(20, 300),
)
def test_each_deadline_that_can_be_met_bounds_the_step(
    online: list[Request], no_deadline: list[bool], contexts: list[int], max_tokens: int
) -> None:
    for request, has_none in zip(online, no_deadline, strict=False):
        request.deadline_ms = math.inf if has_none else request.deadline_ms
    offline = [make_decode(kind=OFFLINE, context=context) for context in contexts]
    limits, policy = Limits(16, 4000, max_tokens, 64), Policy(packing="kv-aware")
    state = replace(step_state(make_timed_table([*online, *offline]), limits, policy, pace=PACE), model=EXACT)
    schedule = KV_AWARE.schedule(state, no_queue)
    expected, limit_ms = in_time(state)
    assert [
        (each.request_id, each.num_scheduled_tokens) for each in schedule.entries if each.kind is Kind.ONLINE
    ] == expected
    by_id = {request.request_id: request for request in (*online, *offline)}
    features, num_left = (
        features_of(schedule.entries[: len(expected)], by_id),
        max_tokens - sum(count for _, count in expected),
    )
    for request in offline:
        after = BatchFeatures(*features.sums)
        after.add_decode(request.num_computed_tokens + 1)
        fits = num_left > 0 and (EXACT.predict_ms(after) <= limit_ms)
        assert (request.request_id in tokens(schedule)) is fits
        features, num_left = (after, num_left - 1) if fits else (features, num_left)


@given(
    offline=st.lists(st.tuples(held_offline, st.booleans()), max_size=8),
    prompts=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 4), st.integers(0, 4)), max_size=12),
    has_online=st.booleans(),
    budget_ms=st.sampled_from([0.0, 9.5, 12.0, 14.0, 30.5, 60.5, 150.5, math.inf]),
    free=st.integers(0, 30),
    kept=st.tuples(st.integers(0, 30), st.integers(0, 6)),
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 300)),
    benefit=st.sampled_from([Benefit(1.0, 0.5), Benefit(2.0, 4.0), Benefit(1.0, 64.0)]),
)
def test_each_change_is_the_best(
    offline: list[tuple[Request, bool]],
    prompts: list[tuple[int, int, int]],
    has_online: bool,
    budget_ms: float,
    free: int,
    kept: tuple[int, int],
    sizes: tuple[int, int],
    benefit: Benefit,
) -> None:
    for request, in_flight in offline:
        request.max_total_tokens = request.num_tokens + request.num_tokens % 20
        request.num_in_flight_tokens = int(in_flight and request.is_running and not request.is_paused)
    held, queue = [each for each, _ in offline], [make_request(kind=OFFLINE, prompt=length) for length, _, _ in prompts]
    cached = {}
    for request, (length, num_cached, num_held) in zip(queue, prompts, strict=True):
        num_cached = min(num_cached, (length - 1) // 16)
        cached[request.request_id] = Found(16 * num_cached, min(num_held, num_cached))
    limits = Limits(16, 4000, max_num_batched_tokens=sizes[1], max_num_seqs=sizes[0])
    state = changes_state(held, has_online, budget_ms, free, limits, benefit)
    state = replace(state, cache=CacheOf(cached), num_wanted_blocks=kept[0], num_reserved_blocks=kept[1])
    check_changes(state, queue)


@given(
    offline=st.lists(st.tuples(st.sampled_from([1, 1, 2, 3, 12]), st.integers(0, 40)), min_size=1, max_size=8),
    prompts=st.lists(st.integers(1, 20), max_size=2),
    has_online=st.booleans(),
    budget_ms=st.one_of(st.just(math.inf), st.integers(4 * 9, 4 * 20).map(lambda quarters: quarters / 4)),
    free=st.integers(0, 2),
    num_wanted=st.integers(0, 2),
    max_tokens=st.sampled_from([3, 20, 300]),
    decode=st.sampled_from([0.5, 2.0, 64.0]),
)
def test_each_change_is_the_best_where_all_lack_blocks(
    offline: list[tuple[int, int]],
    prompts: list[int],
    has_online: bool,
    budget_ms: float,
    free: int,
    num_wanted: int,
    max_tokens: int,
    decode: float,
) -> None:
    """They have filled theirs; some decode, and others have more to compute."""
    held = [
        make_request(kind=OFFLINE, prompt=16 * blocks + max(1, more - 20), computed=16 * blocks)
        for blocks, more in offline
    ]
    queue = [make_request(kind=OFFLINE, prompt=length) for length in prompts]
    limits = Limits(16, 4000, max_num_batched_tokens=max_tokens, max_num_seqs=64)
    state = changes_state(held, has_online, budget_ms, free, limits, Benefit(1.0, decode))
    check_changes(replace(state, num_wanted_blocks=num_wanted), queue)


@given(
    contexts=st.lists(prompt_lengths, min_size=2, max_size=8),
    started=st.lists(st.tuples(prompt_lengths, st.integers(1, 100)), min_size=1, max_size=2),
    free=st.integers(0, 12),
    num_wanted=st.integers(0, 12),
    decode=st.sampled_from([1.0, 2.0, 3.0, 4.0]),
)
def test_each_change_is_the_best_where_decodes_are_worth_about_as_much_as_prompts(
    contexts: list[int], started: list[tuple[int, int]], free: int, num_wanted: int, decode: float
) -> None:
    held = [make_decode(kind=OFFLINE, context=context) for context in contexts]
    held += [make_request(kind=OFFLINE, prompt=computed + more, computed=computed) for computed, more in started]
    state = changes_state(held, True, math.inf, free, Limits(16, 4000, 300, 64), Benefit(1.0, decode))
    check_changes(replace(state, num_wanted_blocks=num_wanted), [])


def changes_state(
    held: list[Request], has_online: bool, budget_ms: float, free: int, limits: Limits, benefit: Benefit
) -> StepState:
    """Without online work there is time for a block of tokens at least."""
    online = [make_decode("on")] if has_online else []
    budget_ms = budget_ms if has_online else max(budget_ms, 150.5)
    policy = Policy(budget_ms, packing="kv-aware", idle_budget_ms=budget_ms, benefit=benefit)
    return replace(step_state(make_table(*online, *held), limits, policy, free), model=EXACT)


def check_changes(state: StepState, queue: list[Request]) -> None:
    schedule = KV_AWARE.schedule(state, queue_of(queue))
    online = [(each, 1) for each in state.table.running(Kind.ONLINE).values()]
    budget_ms = state.policy.latency_budget_ms
    changes = NaiveChanges(
        NaiveBatch(state, budget_ms, state.num_free_blocks, state.limits.max_num_seqs, online), queue
    )
    changes.make()
    assert schedule.entries == changes.batch.entries
    assert schedule.preempted == [request.request_id for request in changes.lost]


def test_nobody_enters_while_a_started_prompt_does_not_fit() -> None:
    """Attention of its next token alone takes longer than there is time."""
    started, new = make_request("started", OFFLINE, prompt=8000, computed=7000), make_request("new", OFFLINE, prompt=4)
    for held, entered in (([], ["new"]), ([started], [])):
        table = make_table(make_decode("on"), make_decode("off", OFFLINE), *held)
        state = replace(step_state(table, policy=Policy(20.0)), model=EXACT)
        assert list(tokens(KV_AWARE.schedule(state, queue_of([new])))) == ["on", "off", *entered]


def test_of_equal_worth_decodes_go_before_prompts() -> None:
    decode, prompt = make_decode("decode", OFFLINE), make_request("prompt", OFFLINE, prompt=80, computed=16)
    state = step_state(make_table(prompt, decode), policy=Policy(benefit=Benefit(1.0, 64.0)))
    free_of_cost = LinearLatencyModel(0, 0, 0, 0, 0, 0, 0)
    assert list(tokens(KV_AWARE.schedule(replace(state, model=free_of_cost), no_queue)).items()) == [
        ("decode", 1),
        ("prompt", 64),
    ]


def test_figure_4() -> None:
    """Five offline requests wait beside online ones. In the order of arrival R1 enters before R2; here R2 and R5 do,
    whose beginning is cached, and R1 with what is left. R4 is too long for what is left of the blocks."""
    online = [make_decode("on-1", context=40), make_decode("on-2", context=60)]
    lengths = {"R1": 100, "R2": 64, "R3": 90, "R4": 4000, "R5": 64}
    queue = [make_request(each, OFFLINE, prompt=length) for each, length in lengths.items()]
    state = replace(
        step_state(make_table(*online), num_free_blocks=30), cache=CacheOf({"R2": Found(48), "R5": Found(48)})
    )
    two_phase = TWO_PHASE.schedule(state, queue_of(queue))
    assert tokens(two_phase) == {"on-1": 1, "on-2": 1, "R1": 100, "R2": 16, "R3": 90, "R5": 16}
    ordered = [queue[1], queue[4], queue[0], queue[2], queue[3]]  # as the order kv-aware shows them
    assert tokens(KV_AWARE.schedule(state, queue_of(ordered))) == tokens(two_phase)
    tight = replace(state, policy=Policy(40.0))
    schedule = KV_AWARE.schedule(tight, queue_of([queue[1], queue[0], queue[2], queue[3], queue[4]]))
    assert tokens(schedule) == {"on-1": 1, "on-2": 1, "R2": 16, "R5": 16, "R1": 20}
    assert schedule.latency_ms <= 40.0


def test_a_late_request_bounds_no_prompt_and_keeps_offline_work_out() -> None:
    late, decode = due(make_decode("late"), -5.0), due(make_decode("on"), 60.0)
    prompt, offline = due(make_request("prompt", prompt=300), 900.0), make_decode("off", OFFLINE)

    def made(*requests: Request) -> dict[str, int]:
        state = step_state(make_timed_table([*requests]), pace=PACE, policy=Policy(packing="kv-aware"))
        return tokens(KV_AWARE.schedule(state, no_queue))

    assert made(late, prompt, offline) == {"late": 1, "prompt": 300}
    assert made(decode, prompt, offline) == {"on": 1, "prompt": 96}  # 10 + 1.1 + 0.5 + 96 / 2 ms
    assert made(decode, offline) == {"on": 1, "off": 1}
    assert made(due(make_request("prompt", prompt=300), 10.0), offline) == {"prompt": 300}


DECODES_FREE = LinearLatencyModel(8.0, 0.5, 0.0, 0.0, 0.0, 0.5, 0.0)
SHORT_STEPS = LinearLatencyModel(0.0, 1 / 64, 0.0, 0.0, 0.0, 1 / 64, 1 / 64)


def with_deadlines(
    model: LinearLatencyModel, *held: Request, plan: list[ScheduledRequest] | None = None
) -> dict[str, int]:
    policy = Policy(packing="kv-aware")
    state = replace(step_state(make_timed_table([*held]), pace=PACE, policy=policy), model=model)
    return tokens(KV_AWARE.schedule(state, no_queue) if plan is None else KV_AWARE.reconcile(state, plan, []))


def test_what_is_due_as_the_step_ends_is_in_time() -> None:
    """It bounds the step, and what costs nothing may still be added; a moment before, it is late."""
    off, prompt, decode = make_decode("off", OFFLINE), make_request("p", prompt=10), make_decode("d")
    for late_ms, enters in ((0.0, {"off": 1}), (1 / 16, {})):
        assert with_deadlines(DECODES_FREE, due(prompt, 13.5 - late_ms), off) == {"p": 10} | enters
        assert with_deadlines(DECODES_FREE, due(decode, 8.0 - late_ms), off) == {"d": 1} | enters
    whole_ms = EXACT.predict_ms(BatchFeatures(10, 1, 0, 0, 55))
    assert with_deadlines(EXACT, due(prompt, whole_ms), off) == {"p": 10}, "no time is left"
    assert with_deadlines(EXACT, due(decode, 60.0), due(make_request("p", prompt=1), 90.0)) == {"d": 1, "p": 1}


def test_of_decodes_those_that_can_be_met_bound_prompts() -> None:
    late, next_due, last = (
        due(make_decode("late"), -5.0),
        due(make_decode("next"), 20.0),
        due(make_decode("last"), 200.0),
    )
    prompt = due(make_request("p", prompt=300), 900.0)
    alone_ms = EXACT.predict_ms(BatchFeatures(0, 0, 303, 3))
    assert 0 < with_deadlines(EXACT, late, next_due, last, prompt)["p"] <= 8
    assert with_deadlines(EXACT, late, due(next_due, alone_ms), last, prompt) == {"late": 1, "next": 1, "last": 1}


def test_beside_a_late_request_no_offline_work_is_short_enough() -> None:
    off = make_decode("off", OFFLINE)
    assert with_deadlines(SHORT_STEPS, due(make_decode("late"), -5.0), off) == {"late": 1}
    assert with_deadlines(SHORT_STEPS, due(make_request("late", prompt=2), -5.0), off) == {"late": 2}


def test_what_decodes_take_alone_bounds_a_prompt_that_comes_before_them_in_a_plan() -> None:
    decodes = [due(make_decode(name), 400.0) for name in ("first", "second")]
    prompt = due(make_request("p", prompt=10), 900.0)
    plan = [ScheduledRequest(each.request_id, Kind.ONLINE, each.num_remaining_tokens) for each in (prompt, *decodes)]
    alone_ms = EXACT.predict_ms(BatchFeatures(0, 0, 202, 2))
    fitting = [n for n in range(1, 10) if EXACT.predict_ms(BatchFeatures(n, 1, 0, 0, n * (n + 1) // 2)) <= alone_ms]
    for in_ms, count in ((alone_ms, max(fitting)), (alone_ms - 1 / 64, 10)):
        due(decodes[0], in_ms)
        assert with_deadlines(EXACT, *decodes, prompt, plan=plan) == {"p": count, "first": 1, "second": 1}


def test_beside_late_requests_an_offline_one_runs_from_time_to_time() -> None:
    table = make_timed_table([due(make_decode("late"), -5.0), make_decode("off", OFFLINE)])
    probing = Pace(now_ms=NOW_MS, num_online_only=PROBE_STEPS)
    for pace, expected in ((PACE, {"late": 1}), (probing, {"late": 1, "off": 1})):
        state = step_state(table, pace=pace, policy=Policy(packing="kv-aware"))
        assert tokens(KV_AWARE.schedule(state, no_queue)) == expected


def test_reconciling_lets_an_arrival_in_and_drops_what_then_takes_too_long() -> None:
    table = make_timed_table([due(make_decode("on"), 30.0), make_request("off", OFFLINE, prompt=60, computed=16)])
    policy = Policy(packing="kv-aware")
    planned = KV_AWARE.schedule(step_state(table, pace=PACE, policy=policy), no_queue)
    assert tokens(planned) == {"on": 1, "off": 36}
    table.add(due(make_request("new", prompt=20), 900.0))
    reconciled = KV_AWARE.reconcile(step_state(table, pace=PACE, policy=policy), planned.entries, [])
    assert tokens(reconciled) == {"on": 1, "new": 20, "off": 15} and reconciled.latency_ms <= 30.0


@pytest.mark.parametrize("num_needed, lost", [(2, ["small"]), (30, ["large"]), (55, ["last", "large"])])
def test_who_loses_its_kv_for_online_work_is_missed_the_least(num_needed: int, lost: list[str]) -> None:
    held = [
        make_decode("large", OFFLINE, context=630),
        make_decode("small", OFFLINE, context=30),
        make_decode("last", OFFLINE, context=310),
    ]
    state = step_state(make_table(*held, make_request("on", prompt=16 * num_needed)), LIMITS_1024, num_free_blocks=0)
    schedule = KV_AWARE.schedule(state, no_queue)
    assert sorted(schedule.preempted) == sorted(lost) and tokens(schedule)["on"] == 16 * num_needed


LIMITS_1024 = Limits(16, 1000, 1024, 64)


def wanting(state: StepState, num_wanted: int, cache: CacheOf | None = None) -> StepState:
    return replace(state, num_wanted_blocks=num_wanted, cache=cache or CacheOf({}))


def test_who_would_evict_as_much_as_it_computes_waits_unless_nobody_else_runs() -> None:
    new, known = make_request("new", OFFLINE, prompt=160), make_request("known", OFFLINE, prompt=160)
    running, cache = make_decode("running", OFFLINE, context=90), CacheOf({"known": Found(144)})
    beside, alone = (step_state(make_table(*each), num_free_blocks=40) for each in ([running], []))
    queue = queue_of([new, known])
    assert list(tokens(KV_AWARE.schedule(wanting(beside, 0), queue))) == ["running", "new", "known"]
    assert list(tokens(KV_AWARE.schedule(wanting(beside, 40), queue))) == ["running"]
    assert tokens(KV_AWARE.schedule(wanting(beside, 40, cache), queue)) == {"running": 1}
    assert tokens(KV_AWARE.schedule(wanting(beside, 39, cache), queue_of([known, new]))) == {"running": 1, "known": 16}
    assert list(tokens(KV_AWARE.schedule(wanting(alone, 40), queue))) == ["new"]


def test_what_an_entrant_reuses_is_not_evicted_for_those_behind_it() -> None:
    """Of 40 free blocks 35 are wanted, nine of them by the first; the second takes ten, for 160 tokens."""
    new, known = make_request("new", OFFLINE, prompt=160), make_request("known", OFFLINE, prompt=160)
    beside = step_state(make_table(make_decode("running", OFFLINE, context=90)), num_free_blocks=40)
    for num_cached, entered in ((144, {"known": 16, "new": 160}), (0, {"known": 160})):
        cache = CacheOf({"known": Found(num_cached)})
        assert tokens(KV_AWARE.schedule(wanting(beside, 35, cache), queue_of([known, new]))) == {"running": 1} | entered


def test_those_behind_the_pools_first_pass_who_lacks_blocks_and_nobody_passes_the_first() -> None:
    beside = step_state(make_table(make_decode("running", OFFLINE, context=90)), num_free_blocks=22)
    small, other = (make_request(name, OFFLINE, prompt=32) for name in ("small", "other"))
    large = make_request("large", OFFLINE, prompt=16 * 28)
    for queue, entered in (([small, large, other], {"small": 32, "other": 32}), ([large, small, other], {})):
        assert tokens(KV_AWARE.schedule(beside, queue_of(queue))) == {"running": 1} | entered


def test_entrants_leave_what_is_reserved_unless_nobody_else_runs() -> None:
    queue = queue_of([make_request("new", OFFLINE, prompt=160)])
    beside = step_state(make_table(make_decode("off", OFFLINE, context=90)), num_free_blocks=20)
    alone = step_state(make_table(), num_free_blocks=20)
    for num_reserved, expected in ((8, ["off", "new"]), (10, ["off"])):
        assert list(tokens(KV_AWARE.schedule(replace(beside, num_reserved_blocks=num_reserved), queue))) == expected
    assert list(tokens(KV_AWARE.schedule(replace(alone, num_reserved_blocks=15), queue))) == ["new"]


def test_nobody_enters_while_an_online_request_waits_for_blocks() -> None:
    """Section 6: only once all online requests are in the batch are offline ones selected. The free blocks, too few for
    the online prompt, would go to one small prompt after the other, and it would wait as long as there are any."""
    on, running, small = make_request("on", prompt=16 * 12), make_decode("off", OFFLINE, context=90), 32
    queue = queue_of([make_request("small", OFFLINE, prompt=small)])
    for num_free, entered in ((10, {"off": 1}), (20, {"on": 16 * 12, "off": 1, "small": small})):
        state = replace(step_state(make_table(on, running), num_free_blocks=num_free), num_offline_blocks=0)
        assert tokens(KV_AWARE.schedule(state, queue)) == entered
        assert tokens(TWO_PHASE.schedule(state, queue)) == entered


def test_where_all_lack_blocks_one_loses_its_kv_for_the_others() -> None:
    held = [make_decode(f"off-{n}", OFFLINE, context=context) for n, context in enumerate((320, 32, 160))]
    schedule = KV_AWARE.schedule(step_state(make_table(*held), num_free_blocks=0), no_queue)
    assert schedule.preempted == ["off-1"] and set(tokens(schedule)) == {"off-0", "off-2"}


def test_where_some_lack_blocks_one_loses_its_kv_if_the_others_earn_more() -> None:
    """A block lets three decodes go on for 16 tokens each: 3 * 16 * b(D), for 160 tokens that are lost."""
    stalled = [make_decode(f"off-{n}", OFFLINE, context=160) for n in range(4)]
    table = make_table(make_decode("runs", OFFLINE, context=150), *stalled)
    for decode, lost in ((64.0, ["off-3"]), (1.0, [])):
        policy = Policy(benefit=Benefit(decode=decode))
        schedule = KV_AWARE.schedule(step_state(table, policy=policy, num_free_blocks=0), no_queue)
        assert schedule.preempted == lost and "runs" in tokens(schedule)


def test_nobody_loses_its_kv_for_prompts_that_have_no_time() -> None:
    """A prompt takes 5 ms beside what its tokens take: a token of it fits the step only as a decode would."""
    model = LinearLatencyModel(10.0, 0.5, 0.0, 0.0, 0.0, 5.0, 1.0)
    held = [make_request(f"off-{n}", OFFLINE, prompt=200, computed=32) for n in range(3)]
    for budget_ms, lost in ((13.0, []), (100.0, ["off-2"])):
        state = step_state(make_table(make_decode("on"), *held), policy=Policy(budget_ms), num_free_blocks=0)
        assert KV_AWARE.schedule(replace(state, model=model), no_queue).preempted == lost


def test_the_preset_has_the_papers_slos_and_knobs_reach_the_packing() -> None:
    echo = preset_named("echo")
    assert (echo.packing, echo.offline_order, echo.latency_budget) == ("kv-aware", "kv-aware", "deadline")
    assert (echo.ttft_slo_ms, echo.tpot_slo_ms) == (1000.0, 50.0)
    weighted = Strategy.of("echo", prefill_benefit=2.0, decode_benefit=3.0)
    assert weighted.policy(None).benefit == Benefit(2.0, 3.0)
    assert Strategy.of("hygen", packing="kv-aware", decode_benefit=3.0).policy(40.0).benefit == Benefit(1.0, 3.0)
    assert features_of([], {}).is_empty
