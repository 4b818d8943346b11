"""HyGen Alg. 1 and the two phases of Alg. 2."""

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.scheduling.credit import NO_SHARE, OnlineShare
from shared.scheduling.limits import Limits
from shared.scheduling.packing.pace import PROBE_STEPS, TURN_STEPS, Pace
from shared.scheduling.packing.packing import MAX_PASSED
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from shared.scheduling.table import RequestTable
from tests.shared.scheduling.factories import (
    LIMITS,
    MODEL,
    TWO_PHASE,
    UNBOUNDED,
    features_of,
    held_requests,
    make_decode,
    make_request,
    make_table,
    plan,
    queue_of,
    step_state,
    tokens,
)


def fit(
    entries: list[ScheduledRequest],
    table: RequestTable,
    free: int = 900,
    policy: Policy = UNBOUNDED,
    preempted: list[str] | None = None,
) -> Schedule:
    return TWO_PHASE.reconcile(step_state(table, LIMITS, policy, free), entries, preempted or [])


def entry(request: Request, num_tokens: int = 1) -> ScheduledRequest:
    return ScheduledRequest(request.request_id, request.kind, num_tokens)


def test_without_offline_work_it_is_chunked_prefill_continuous_batching() -> None:
    decode = make_decode("a")
    first = make_request("b", prompt=400)
    second = make_request("c", prompt=400)
    third = make_request("d", prompt=400)
    schedule = plan(make_table(decode, first, second, third), policy=Policy(latency_budget_ms=1.0))
    assert tokens(schedule) == {"a": 1, "b": 400, "c": 111}
    assert schedule.preempted == []


def test_started_prompts_go_before_waiting_ones() -> None:
    started = make_request("started", prompt=600, computed=160)
    waiting = make_request("waiting", prompt=600)
    assert tokens(plan(make_table(waiting, started))) == {"started": 440, "waiting": 72}


def test_offline_fills_what_the_latency_budget_leaves() -> None:
    online = make_decode("on", context=100)
    base = MODEL.predict_ms(BatchFeatures(0, 0, 101, 1))
    waiting = make_request("off", Kind.OFFLINE, prompt=400)
    schedule = plan(make_table(online), [waiting], policy=Policy(latency_budget_ms=base + 0.5 + 20 * 0.5 + 0.25))
    assert tokens(schedule) == {"on": 1, "off": 20}
    assert schedule.latency_ms <= base + 0.5 + 20 * 0.5 + 0.25


def test_without_online_requests_a_step_has_the_idle_budget() -> None:
    policy = Policy(latency_budget_ms=20.0, idle_budget_ms=60.0)
    offline = make_request("off", Kind.OFFLINE, prompt=400)
    alone = plan(make_table(), [offline], policy=policy)
    assert tokens(alone) == {"off": 99} and 59.0 < alone.latency_ms <= 60.0  # a base of 10.5 ms, and half a ms a token
    for online in (make_decode("on"), make_request("on", prompt=1), make_request("on", prompt=30, computed=16)):
        beside = plan(make_table(online), [offline], policy=policy)
        assert "off" in tokens(beside) and beside.latency_ms <= 20.0
    unheld = plan(make_table(), [offline], policy=Policy(latency_budget_ms=60.0, idle_budget_ms=20.0))
    assert tokens(unheld) == tokens(alone), "it is never less than the latency budget"


def test_what_was_planned_under_the_idle_budget_gives_way_to_an_arrival() -> None:
    policy = Policy(latency_budget_ms=20.0, idle_budget_ms=60.0)
    decodes = [make_decode(f"off-{n}", Kind.OFFLINE) for n in range(20)]
    planned = plan(make_table(*decodes), policy=policy)
    assert len(planned.entries) == 20
    table = make_table(*decodes, make_request("on", prompt=4))
    schedule = fit(planned.entries, table, policy=policy)
    assert schedule.entries[0].request_id == "on" and schedule.latency_ms <= 20.0
    assert 0 < schedule.num_dropped == 21 - len(schedule.entries)


def test_offline_decodes_that_do_not_fit_are_held_with_their_blocks() -> None:
    decodes = [make_decode(f"off-{n}", Kind.OFFLINE, context=100) for n in range(5)]
    cost = MODEL.predict_ms(BatchFeatures(0, 0, 404, 4))
    schedule = plan(make_table(make_decode("on"), *decodes), policy=Policy(latency_budget_ms=cost + 0.001))
    assert list(tokens(schedule)) == ["on", "off-0", "off-1", "off-2"]
    assert schedule.preempted == []


def test_online_only_serves_no_offline_work() -> None:
    table = make_table(make_decode("on"), make_decode("off", Kind.OFFLINE))
    assert list(tokens(plan(table, policy=Policy(offline_enabled=False)))) == ["on"]


def test_a_long_queue_is_read_only_as_far_as_it_fits() -> None:
    seen = []

    def queue() -> list[Request]:
        return [make_request(f"off-{n}", Kind.OFFLINE, prompt=256) for n in range(10_000)]

    class Counting(list[Request]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            for request in super().__iter__():
                seen.append(request.request_id)
                yield request

    schedule = plan(make_table(), Counting(queue()))
    assert tokens(schedule) == {"off-0": 256, "off-1": 256}
    assert len(seen) == 3


def test_offline_gives_its_blocks_to_online_from_the_tail() -> None:
    offline = [make_decode(f"off-{n}", Kind.OFFLINE, context=160) for n in range(3)]  # 10 blocks each
    online = make_request("on", prompt=320)  # needs 20
    schedule = plan(make_table(*offline, online), num_free_blocks=5)
    assert tokens(schedule)["on"] == 320
    assert schedule.preempted == ["off-2", "off-1"]
    assert "off-0" in tokens(schedule)


def test_the_latest_online_request_gives_way_when_all_else_is_gone() -> None:
    first = make_decode("first", context=160)  # its next token needs a new block
    second = make_decode("second", context=160)
    schedule = plan(make_table(first, second), num_free_blocks=0)
    assert schedule.preempted == ["second"]
    assert tokens(schedule) == {"first": 1}


def test_a_waiting_request_enters_only_where_all_of_it_fits_and_those_that_run_can_grow() -> None:
    """By a block each, those that enter in the same step included: 25 of its own, then 7 of the other's."""
    running, big = make_decode("running", context=100), dataclasses.replace(LIMITS, max_num_batched_tokens=1000)
    waiting, following = make_request("waiting", prompt=400), make_request("next", prompt=112)

    def entered(num_free_blocks: int, growth_room: float) -> list[str]:
        table = make_table(running, waiting, following, make_request("far", prompt=4000))
        policy = Policy(growth_room=growth_room)
        return list(tokens(plan(table, limits=big, num_free_blocks=num_free_blocks, policy=policy)))[1:]

    for growth_room, one, both in ((1.0, 26, 34), (0.5, 25, 33), (0.0, 25, 32)):
        assert entered(one - 1, growth_room) == []
        assert entered(one, growth_room) == entered(both - 1, growth_room) == ["waiting"]
        assert entered(both, growth_room) == ["waiting", "next"]


def test_no_offline_request_enters_while_an_online_one_waits_for_blocks() -> None:
    running, waiting = make_decode("running", context=100), make_request("waiting", prompt=400)
    offline = make_decode("off", Kind.OFFLINE), make_request("new", Kind.OFFLINE, prompt=32)
    for free, chosen in ((18, ["running", "off"]), (30, ["running", "waiting", "off", "new"])):
        table = make_table(running, waiting, *offline)
        assert list(tokens(plan(table, num_free_blocks=free))) == chosen


def test_reconcile_keeps_a_plan_that_still_holds() -> None:
    online, offline = make_decode("on"), make_decode("off", Kind.OFFLINE)
    table = make_table(online, offline)
    schedule = fit([entry(online), entry(offline)], table)
    assert tokens(schedule) == {"on": 1, "off": 1}
    assert schedule.num_dropped == 0


def test_reconcile_forgets_what_ended_and_adds_what_arrived() -> None:
    gone, stays = make_decode("gone"), make_decode("stays")
    arrived = make_request("arrived", prompt=30)
    schedule = fit([entry(gone), entry(stays)], make_table(stays, arrived))
    assert tokens(schedule) == {"stays": 1, "arrived": 30}


def test_reconcile_drops_offline_entries_until_an_arrival_fits() -> None:
    offline = [make_decode(f"off-{n}", Kind.OFFLINE, context=100) for n in range(4)]
    table = make_table(make_request("arrived", prompt=40), *offline)
    budget = MODEL.predict_ms(BatchFeatures(40, 1, 202, 2)) + 0.01
    schedule = fit([entry(request) for request in offline], table, policy=Policy(budget))
    assert list(tokens(schedule)) == ["arrived", "off-0", "off-1"]
    assert schedule.num_dropped == 2


def test_reconcile_preempts_offline_when_an_arrival_needs_the_blocks() -> None:
    offline = [make_decode(f"off-{n}", Kind.OFFLINE, context=155) for n in range(2)]  # 10 blocks each, room for one
    table = make_table(make_request("arrived", prompt=160), *offline)
    schedule = fit([entry(request) for request in offline], table, free=0)
    assert tokens(schedule) == {"arrived": 160, "off-0": 1}
    assert schedule.preempted == ["off-1"]


def test_reconcile_shortens_a_chunk_that_the_cache_made_shorter() -> None:
    request = make_request("r", prompt=100, computed=64)
    assert tokens(fit([entry(request, 100)], make_table(request))) == {"r": 36}


@given(
    held=st.lists(held_requests, max_size=30),
    queue=st.lists(st.integers(1, 400), max_size=10),
    free=st.integers(0, 60),
    budget_ms=st.floats(0, 300),
    max_seqs=st.integers(1, 40),
)
def test_no_schedule_breaks_a_budget(
    held: list[Request], queue: list[int], free: int, budget_ms: float, max_seqs: int
) -> None:
    table = make_table(*held)
    limits = Limits(16, 2000, 512, max_seqs)
    waiting = [make_request("", Kind.OFFLINE, prompt=prompt) for prompt in queue]
    schedule = plan(table, waiting, limits, Policy(budget_ms), num_free_blocks=free)
    by_id = {request.request_id: request for request in [*held, *waiting]}
    chosen = tokens(schedule)

    assert len(chosen) == len(schedule.entries) <= max_seqs
    assert sum(chosen.values()) <= 512
    assert not set(chosen) & set(schedule.preempted)
    needed = sum(by_id[key].num_new_blocks(count, 16) for key, count in chosen.items())
    assert needed <= free + sum(by_id[key].num_blocks for key in schedule.preempted)
    assert all(0 < count <= by_id[key].num_remaining_tokens for key, count in chosen.items())

    online = [each for each in schedule.entries if each.kind is Kind.ONLINE]
    online_ms = MODEL.predict_ms(features_of(online, by_id))
    assert schedule.latency_ms == pytest.approx(MODEL.predict_ms(features_of(schedule.entries, by_id)))
    waits_for_offline = not online and not any(request.is_in_flight for request in held)
    has_online = table.holds_online and not waits_for_offline
    is_least = not has_online and len(chosen) == 1 and max(chosen.values()) <= 16
    assert is_least or schedule.latency_ms <= max(Policy(budget_ms).budget_ms(has_online, MODEL), online_ms) + 1e-6


@given(held=st.lists(held_requests, max_size=20), queue=st.lists(st.integers(1, 400), max_size=10))
def test_offline_load_never_changes_what_online_gets(held: list[Request], queue: list[int]) -> None:
    online = [request for request in held if request.kind is Kind.ONLINE]
    waiting = [make_request("", Kind.OFFLINE, prompt=prompt) for prompt in queue]
    alone = plan(make_table(*online), limits=LIMITS, num_free_blocks=1000)
    free = 1000 - sum(request.num_blocks for request in held if request.kind is Kind.OFFLINE)
    together = plan(make_table(*held), waiting, LIMITS, Policy(50.0), num_free_blocks=free)
    assert [e for e in together.entries if e.kind is Kind.ONLINE] == alone.entries


@given(
    held=st.lists(st.tuples(held_requests, st.booleans()), max_size=30),
    queue=st.lists(st.integers(1, 400), max_size=5),
    free=st.integers(0, 60),
)
def test_what_is_in_flight_is_neither_scheduled_nor_preempted(
    held: list[tuple[Request, bool]], queue: list[int], free: int
) -> None:
    for request, in_flight in held:
        request.num_in_flight_tokens = int(in_flight and request.is_running)
    table = make_table(*(request for request, _ in held))
    busy = {request.request_id for request, _ in held if request.is_in_flight}
    waiting = [make_request("", Kind.OFFLINE, prompt=prompt) for prompt in queue]
    state = step_state(table, num_free_blocks=free)
    planned = TWO_PHASE.schedule(state, queue_of(waiting))
    entries = [entry(request) for request, _ in held]
    preempted = [request.request_id for request, _ in held[::3]]
    reconciled = TWO_PHASE.reconcile(state, entries, preempted)
    for schedule in (planned, reconciled):
        assert not busy & (set(tokens(schedule)) | set(schedule.preempted))
        needed = sum(
            request.num_new_blocks(tokens(schedule).get(request.request_id, 0), 16)
            for request in (*(each for each, _ in held), *waiting)
            if request.request_id in tokens(schedule)
        )
        lost = sum(request.num_blocks for request, _ in held if request.request_id in schedule.preempted)
        assert needed <= free + lost


@pytest.mark.parametrize("budget_ms", [5.0, 0.0])
def test_an_idle_executor_runs_offline_work_whatever_the_budget(budget_ms: float) -> None:
    """The cheapest step takes 11 ms: under 5 ms nothing would ever run."""
    policy = Policy(budget_ms)
    waiting = [make_request(f"w{n}", Kind.OFFLINE, prompt=40) for n in range(3)]
    entering = plan(make_table(), waiting, policy=policy)
    assert [entry.request_id for entry in entering.entries] == ["w0"]
    decodes = [make_decode(f"d{n}", Kind.OFFLINE) for n in range(30)]
    going_on = plan(make_table(*decodes), waiting, policy=policy)
    assert 1 < len(going_on.entries) < len(decodes), "as many as take as long again as the cheapest step"
    far_along = make_decode("far", Kind.OFFLINE, context=15_000)  # 25 ms
    table = make_table(far_along)
    state = step_state(table, policy=policy)
    assert TWO_PHASE.schedule(state, queue_of(waiting)).entries == [ScheduledRequest("far", Kind.OFFLINE, 1)]
    assert TWO_PHASE.reconcile(state, [ScheduledRequest("far", Kind.OFFLINE, 1)], []).num_dropped == 0
    table.add(make_request("online"))
    assert [entry.kind for entry in plan(table, waiting, policy=policy).entries] == [Kind.ONLINE]


@pytest.mark.parametrize("packing", ["two-phase", "mix-decoding", "kv-aware"])
@pytest.mark.parametrize(
    "policy", [Policy(0.0), Policy(5.0), Policy(0.0, tolerance=0.02)], ids=["no budget", "below any step", "tolerance"]
)
@pytest.mark.parametrize(
    "online", [make_request("on", prompt=400), make_decode("on", context=160)], ids=["waits", "has started"]
)
def test_where_offline_requests_keep_the_blocks_that_online_ones_lack_they_go_on(
    online: Request, policy: Policy, packing: str
) -> None:
    """As with keep-resident: nothing but their end frees any. The cheapest step takes 11 ms, a decode of theirs 13."""
    holder, entrant = make_decode("off", Kind.OFFLINE, context=1599), make_request("new", Kind.OFFLINE, prompt=1)
    table = make_table(online, holder)
    state = dataclasses.replace(step_state(table, policy=policy, num_free_blocks=0), num_offline_blocks=0)
    schedule = packing_named(packing).schedule(state, queue_of([entrant]))
    assert schedule.entries == [ScheduledRequest("off", Kind.OFFLINE, 1)] and schedule.share == NO_SHARE
    again = packing_named(packing).reconcile(state, schedule.entries, [])
    assert again.entries == schedule.entries and again.num_dropped == 0
    holder.num_in_flight_tokens = 1
    assert packing_named(packing).schedule(state, queue_of([entrant])).entries == [], "its step is awaited"
    holder.num_in_flight_tokens = 0


@pytest.mark.parametrize("packing", ["two-phase", "mix-decoding", "kv-aware", "deadline"])
@pytest.mark.parametrize("policy", [UNBOUNDED, Policy(offline_enabled=False)], ids=["any", "online only"])
def test_where_neither_kind_can_go_on_offline_requests_give_up_what_they_keep(packing: str, policy: Policy) -> None:
    """As with keep-resident: both lack a block, and nothing else runs that could free one."""
    table = make_table(make_decode("on", context=160), make_decode("off", Kind.OFFLINE, context=320))
    state = dataclasses.replace(step_state(table, policy=policy, num_free_blocks=0), num_offline_blocks=0)
    schedule = packing_named(packing).schedule(state, queue_of([]))
    assert tokens(schedule) == {"on": 1} and schedule.preempted == ["off"]
    other = make_decode("other", context=80)
    other.num_in_flight_tokens = 1
    table.add(other)
    waits = packing_named(packing).schedule(state, queue_of([]))
    assert (waits.entries, waits.preempted) == ([], []), "that one may free some"


@pytest.mark.parametrize(
    ("offline", "num_tokens"),
    [(make_decode("o", Kind.OFFLINE), 1), (make_request("o", Kind.OFFLINE, prompt=200), LIMITS.block_size)],
    ids=["decode", "prompt"],
)
def test_beside_online_work_a_budget_that_lets_nothing_in_is_probed(offline: Request, num_tokens: int) -> None:
    """By one request, a little of it, once in ``PROBE_STEPS`` steps."""
    online, policy, pace = make_decode("a"), Policy(5.0), Pace()
    table = make_table(online, offline) if offline.is_running else make_table(online)
    queue = queue_of([] if offline.is_running else [offline, make_request("p", Kind.OFFLINE)])
    probes = []
    for step in range(2 * PROBE_STEPS + 2):
        state = step_state(table, policy=policy, pace=pace)
        schedule = TWO_PHASE.schedule(state, queue)
        if len(schedule.entries) > 1:
            assert schedule.entries[1:] == [ScheduledRequest("o", Kind.OFFLINE, num_tokens)]
            if offline.is_running:
                assert TWO_PHASE.reconcile(state, schedule.entries, []).entries == schedule.entries
            probes.append(step)
        pace = pace.after(schedule, LIMITS.max_num_seqs)
    assert probes == [PROBE_STEPS, 2 * PROBE_STEPS + 1]
    none = step_state(table, policy=Policy(0.0), pace=Pace(num_online_only=PROBE_STEPS))
    assert len(TWO_PHASE.schedule(none, queue).entries) == 1, "a budget of 0 is meant"


@given(
    running=st.lists(st.tuples(st.integers(1, 200), st.booleans()), max_size=8),
    prompts=st.lists(st.integers(1, 200), max_size=8),
    free=st.integers(0, 80),
    num_reserved=st.integers(0, 20),
)
def test_who_enters_leaves_a_block_for_each_that_runs(
    running: list[tuple[int, bool]], prompts: list[int], free: int, num_reserved: int
) -> None:
    """One after another, as long as the free blocks have all of it and those besides; what is paused needs none. Who
    would not have them without any offline request either is passed."""
    held = [make_decode(kind=Kind.OFFLINE, context=context) for context, _ in running]
    for request, (_, is_paused) in zip(held, running, strict=True):
        request.num_kept_blocks = request.num_blocks if is_paused else None
    queue = [make_request(kind=Kind.OFFLINE, prompt=prompt) for prompt in prompts]
    left = free - sum(each.num_new_blocks(1, 16) for each in held if not each.is_paused)
    assume(left >= 0)
    to_leave = num_reserved + sum(not each.is_paused for each in held)
    limits, online = Limits(16, 4000, 10_000, 64), make_decode("on", context=100)
    state = step_state(make_table(online, *held), limits, num_free_blocks=free)
    schedule = TWO_PHASE.schedule(dataclasses.replace(state, num_reserved_blocks=num_reserved), queue_of(queue))
    expected, of_all = [], free + sum(each.num_freed_blocks for each in held) - num_reserved
    for request in [each for each in held if each.is_paused] + queue:
        needed = request.num_new_blocks(request.num_remaining_tokens, 16)
        if needed > of_all:  # waits for online requests
            continue
        if needed + to_leave > left:
            break
        expected.append(request.request_id)
        left, to_leave = left - needed, to_leave + 1
    decodes = [each.request_id for each in held if not each.is_paused]
    assert list(tokens(schedule)) == ["on", *decodes, *expected]


@given(
    held=st.lists(st.tuples(held_requests, st.booleans()), max_size=20),
    prompts=st.lists(st.integers(1, 300), max_size=4),
    free=st.integers(0, 60),
)
def test_what_a_plan_takes_kv_from_does_not_run(
    held: list[tuple[Request, bool]], prompts: list[int], free: int
) -> None:
    """Nor does it give way a second time: all goes on as if it were not there, and its blocks were free."""
    kept = [request for request, is_lost in held if not is_lost]
    lost = [request for request, is_lost in held if is_lost and request.is_running]
    arrived = [make_request(prompt=prompt) for prompt in prompts]
    entries = [entry(request, request.num_remaining_tokens) for request, _ in held]
    schedule = fit(entries, make_table(*(each for each, _ in held), *arrived), free, preempted=_ids(lost))
    assert not {*_ids(lost)} & {*tokens(schedule)} and {*_ids(lost)} <= {*schedule.preempted}
    waiting = [request for request, is_lost in held if is_lost and not request.is_running]
    table = make_table(*kept, *waiting, *arrived)
    without = fit(entries, table, free + sum(request.num_blocks for request in lost))
    assert schedule.entries == without.entries
    assert [each for each in schedule.preempted if each not in _ids(lost)] == without.preempted


@pytest.mark.parametrize("packing", ["two-phase", "mix-decoding", "kv-aware", "deadline"])
def test_who_waits_for_blocks_of_online_requests_is_passed_but_in_its_turn(packing: str) -> None:
    """30 blocks are free, and 7 are of an offline request that will end. Nobody passes whom 37 are enough for."""
    running = make_decode("running", Kind.OFFLINE, context=100)
    small = make_request("small", Kind.OFFLINE, prompt=32)
    turns = [(0, 37, False), (0, 38, True), (3 * TURN_STEPS - 1, 38, True), (3 * TURN_STEPS, 38, False)]
    turns += [(4 * TURN_STEPS - 1, 38, False), (4 * TURN_STEPS, 38, True)]
    for has_lost_kv in (False, True):
        for seed, num_blocks, is_passed in turns:
            large = make_request("large", Kind.OFFLINE, prompt=16 * num_blocks)
            table, queue = make_table(make_decode("on", context=100), running), [large, small]
            if has_lost_kv:
                table.add(queue.pop(0))
            state = step_state(table, num_free_blocks=30, pace=Pace(seed=seed))
            entered = {"on": 1, "running": 1} | ({"small": 32} if is_passed else {})
            assert tokens(packing_named(packing).schedule(state, queue_of(queue))) == entered
            large.num_tokens -= 16
            reserved = dataclasses.replace(state, num_reserved_blocks=1)
            assert tokens(packing_named(packing).schedule(reserved, queue_of(queue))) == entered


def test_of_those_that_are_passed_a_step_looks_at_a_bounded_number() -> None:
    small = make_request("small", Kind.OFFLINE, prompt=32)
    for num_large, entered in ((MAX_PASSED, {"on": 1, "small": 32}), (MAX_PASSED + 1, {"on": 1})):
        large = [make_request(kind=Kind.OFFLINE, prompt=600) for _ in range(num_large)]
        state = step_state(make_table(make_decode("on", context=100)), num_free_blocks=30)
        assert tokens(TWO_PHASE.schedule(state, queue_of([*large, small]))) == entered


def _ids(requests: list[Request]) -> list[str]:
    return [request.request_id for request in requests]


def test_reconcile_keeps_the_order_of_the_plan() -> None:
    """Whoever comes first by the executor's own; who has just arrived gets what is left."""
    first, second = make_request("a", prompt=400), make_request("b", prompt=400)
    assert tokens(fit([entry(second, 400)], make_table(first, second))) == {"b": 400, "a": 112}
    assert list(tokens(fit([entry(second, 400)], make_table(first, second)))) == ["b", "a"]


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("prompt", [160, 170])
def test_what_the_plan_takes_from_somebody_is_for_who_enters_by_it(kind: Kind, prompt: int) -> None:
    """To the last block, and no more."""
    lost, entering = make_decode("lost", kind, context=160), make_request("in", Kind.OFFLINE, prompt=prompt)
    schedule = fit([entry(entering, prompt)], make_table(lost, entering), 0, UNBOUNDED, ["lost"])
    assert (schedule.preempted, tokens(schedule), schedule.num_dropped) == (["lost"], {"in": 160}, 0)


def test_no_online_prompt_passes_another() -> None:
    long, short = make_request("long", prompt=400), make_request("short", prompt=16)
    assert tokens(plan(make_table(long, short), num_free_blocks=20)) == {}
    assert list(tokens(plan(make_table(short, long), num_free_blocks=20))) == ["short"]


def test_nothing_offline_enters_where_some_has_just_lost_its_kv() -> None:
    offline = [make_decode(f"off-{n}", Kind.OFFLINE, context=155) for n in range(3)]  # 10 blocks each
    waiting = make_request("waiting", Kind.OFFLINE, prompt=16)
    for prompt, entered in ((320, ["on", "off-0"]), (80, ["on", "off-0", "off-1", "off-2", "waiting"])):
        table = make_table(*offline, make_request("on", prompt=prompt))
        assert list(tokens(plan(table, [waiting], num_free_blocks=9))) == entered


def test_nothing_offline_enters_where_a_started_prompt_has_to_wait() -> None:
    """Attention of a chunk grows with what is before it: a short prompt would fit the time."""
    model = LinearLatencyModel(10.0, 0.5, 0.002, 0.0, 0.0, 0.0, 0.0, 0.001)
    started = make_request("started", Kind.OFFLINE, prompt=8000, computed=7000)
    waiting, online = make_request("waiting", Kind.OFFLINE, prompt=4), make_decode("on")
    for held, entered in (([online], ["on", "waiting"]), ([online, started], ["on"])):
        state = step_state(make_table(*held), Limits(16, 2000, 512, 8), Policy(20.0))
        schedule = TWO_PHASE.schedule(dataclasses.replace(state, model=model), queue_of([waiting]))
        assert list(tokens(schedule)) == entered


@pytest.mark.parametrize("policy", [UNBOUNDED, Policy(1.0)])
def test_reconcile_keeps_the_chunks_of_the_plan(policy: Policy) -> None:
    """Whatever they take; who arrives has the rest of the step."""
    planned, arrived = make_request("planned", prompt=400), make_request("arrived", prompt=400)
    first, second = make_decode("first"), make_decode("second")
    entries = [entry(second), entry(planned, 100), entry(first)]
    schedule = fit(entries, make_table(first, second, planned, arrived), policy=policy)
    assert list(tokens(schedule).items()) == [("second", 1), ("planned", 100), ("first", 1), ("arrived", 400)]


def test_a_step_that_is_held_to_a_tolerance_says_what_its_online_part_takes() -> None:
    """Whether planned or reconciled; with offline work beside it or without."""
    online, offline, policy = make_decode("on"), make_decode("off", Kind.OFFLINE), Policy(tolerance=0.5)
    for held in ([online], [online, offline]):
        planned = plan(make_table(*held), policy=policy)
        share = OnlineShare(1, MODEL.predict_ms(BatchFeatures(0, 0, 101, 1)), 0.5, False)
        assert planned.share == fit(planned.entries, make_table(*held), policy=policy).share == share
    assert plan(make_table(offline), policy=policy).share == NO_SHARE
