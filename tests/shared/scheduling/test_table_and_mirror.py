"""The request table, and the mirror against an executor's true outcome."""

import math

import pytest

from shared.latency.features import BatchFeatures
from shared.scheduling.orders.offline.view import no_queue
from shared.scheduling.packing.pace import Pace
from shared.scheduling.planning.mirror import ARRIVAL_GRACE_STEPS
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.strategy import Strategy, preset_named
from tests.shared.scheduling.factories import (
    MODEL,
    UNBOUNDED,
    make_decode,
    make_mirror,
    make_request,
    make_table,
    queue_of,
)


def test_a_preempted_request_returns_to_the_front_with_its_tokens() -> None:
    running, waiting = make_decode("running", context=40), make_request("waiting")
    table = make_table(waiting, running)
    table.preempt(running)
    assert list(table.waiting(Kind.ONLINE)) == ["running", "waiting"]
    assert (running.num_computed_tokens, running.num_blocks, running.num_tokens) == (0, 0, 41)
    table.check_integrity()


def test_preempted_requests_wait_in_the_order_of_their_first_start_and_run_again_in_it() -> None:
    requests = [make_request(name, Kind.OFFLINE) for name in "abcde"]
    table = make_table(*requests)
    for request in requests[:4]:
        request.num_blocks = 1
        table.start(request)
    for index in (0, 2, 1):
        table.preempt(requests[index])
        table.check_integrity()
    assert list(table.waiting(Kind.OFFLINE)) == ["a", "b", "c", "e"]
    for index in (4, 1, 0):
        requests[index].num_blocks = 1
        table.start(requests[index])
        table.check_integrity()
    assert list(table.running(Kind.OFFLINE)) == ["a", "b", "d", "e"]
    assert list(table.waiting(Kind.OFFLINE)) == ["c"]


@pytest.mark.parametrize("is_running", [True, False], ids=["runs", "was preempted"])
def test_one_that_was_thought_to_have_ended_has_the_place_that_it_had(is_running: bool) -> None:
    """It keeps running ahead of those that started after it, or waits ahead of them."""
    first, second = make_decode("a", Kind.OFFLINE), make_decode("b", Kind.OFFLINE)
    first.was_admitted = second.was_admitted = True
    table = make_table()
    table.replace([first, second])
    table.preempt(second)
    table.remove("a")
    if not is_running:
        first.num_computed_tokens = first.num_blocks = 0
    table.replace([first, second])
    table.check_integrity()
    second.num_blocks = first.num_blocks = 1
    table.start(second)
    if not is_running:
        table.start(first)
    table.check_integrity()
    assert list(table.running(Kind.OFFLINE)) == ["a", "b"]


def test_an_id_is_held_once() -> None:
    table = make_table(make_request("a"))
    with pytest.raises(ValueError, match="request a is here already"):
        table.add(make_request("a", Kind.OFFLINE))


def test_the_mirror_foresees_chunks_decodes_and_length_ends() -> None:
    mirror = make_mirror()
    prompt = make_request("prompt", prompt=100)
    decode = make_decode("decode", context=16)
    last = make_request("last", prompt=20, output=9, computed=28, max_tokens=10)
    mirror.observe([prompt, decode, last], [], 990)
    step = [
        ScheduledRequest("prompt", Kind.ONLINE, 60),
        ScheduledRequest("decode", Kind.ONLINE, 1),
        ScheduledRequest("last", Kind.ONLINE, 1),
    ]
    mirror.start(step)
    assert [request.num_in_flight_tokens for request in (prompt, decode, last)] == [60, 1, 1]
    mirror.finish(step)
    assert not any(request.is_in_flight for request in (prompt, decode, last))
    assert (prompt.num_computed_tokens, prompt.num_tokens, prompt.num_blocks) == (60, 100, 4)
    assert (decode.num_computed_tokens, decode.num_tokens, decode.num_blocks) == (17, 18, 2)
    assert "last" not in mirror.table
    assert mirror.num_free_blocks == 990 - 4 - 1 + 2
    mirror.table.check_integrity()


def test_the_executors_word_wins() -> None:
    mirror = make_mirror()
    mirror.observe([make_decode("a"), make_decode("b")], [], 900)
    mirror.observe([make_decode("b")], ["a"], 910)
    assert [request.request_id for request in mirror.table] == ["b"]
    assert mirror.num_free_blocks == 910


def test_an_arrival_is_kept_until_the_executor_had_time_to_mention_it() -> None:
    mirror = make_mirror()
    mirror.arrive(make_request("new"))
    for _ in range(ARRIVAL_GRACE_STEPS - 1):
        mirror.observe([], [], 1000)
        assert "new" in mirror.table
    mirror.observe([], [], 1000)
    assert "new" not in mirror.table


def test_an_arrival_that_ended_is_not_kept() -> None:
    mirror = make_mirror()
    mirror.arrive(make_request("new"))
    mirror.observe([], ["new"], 1000)
    assert "new" not in mirror.table


def test_a_plan_covers_arrivals_and_the_offline_queue() -> None:
    mirror = make_mirror()
    mirror.observe([make_decode("old")], [], 900)
    mirror.arrive(make_request("new", prompt=50))
    schedule = mirror.plan(queue_of([make_request("off", Kind.OFFLINE, prompt=60)]), UNBOUNDED, MODEL)
    assert [entry.request_id for entry in schedule.entries] == ["old", "new", "off"]


def test_presets() -> None:
    assert preset_named("hygen").policy(None) == Policy(0.0, offline_enabled=False)
    assert preset_named("hygen").policy(50.0) == Policy(50.0, offline_enabled=True)
    assert preset_named("sarathi++").policy(50.0).latency_budget_ms == float("inf")
    assert not preset_named("online-only").policy(50.0).offline_enabled
    with pytest.raises(ValueError, match=r"unknown preset 'x'; known: hygen, sarathi\+\+, hygen-star, online-only"):
        preset_named("x")


def test_what_a_step_is_expected_to_take_has_who_enters_by_it() -> None:
    mirror = make_mirror()
    mirror.observe([make_request("waiting", prompt=50), make_decode("running", context=100)], [], 900)
    entries = [ScheduledRequest("waiting", Kind.ONLINE, 50), ScheduledRequest("running", Kind.ONLINE, 1)]
    unknown = ScheduledRequest("gone", Kind.ONLINE, 9)
    expected_ms = MODEL.predict_ms(BatchFeatures(50, 1, 101, 1))
    assert mirror.expected_ms([*entries, unknown], MODEL) == pytest.approx(expected_ms)


def test_whether_all_is_known_is_told_by_the_count_of_those_that_never_ran() -> None:
    mirror = make_mirror()
    mirror.observe([make_request("a"), make_request("b")], [], 1000, num_fresh=2)
    assert mirror.knows_all
    mirror.observe([make_request("c")], [], 1000, num_fresh=4)
    assert not mirror.knows_all, "three are known"
    mirror.observe([make_request("a")], [], 1000)
    assert mirror.knows_all, "it tells all"


def test_the_told_reserve_bounds_who_enters() -> None:
    mirror = make_mirror()
    queue = queue_of([make_request("off", Kind.OFFLINE, prompt=60)])
    for num_reserved, entered in ((6, ["on", "off"]), (7, ["on"])):
        mirror.observe([make_decode("on")], [], 10, num_reserved_blocks=num_reserved)
        assert [each.request_id for each in mirror.plan(queue, UNBOUNDED, MODEL).entries] == entered


@pytest.mark.parametrize(("preset", "first_ms"), [("bros", 400.0), ("echo", 1000.0)])
def test_who_arrives_is_due_by_the_strategys_rule(preset: str, first_ms: float) -> None:
    """From its coming to the executor, or to the gateway."""
    mirror = make_mirror(preset=preset)
    online, offline = make_request("on"), make_request("off", Kind.OFFLINE)
    for request in (online, offline):
        mirror.arrive(request, 500.0, 120.0)
    waited_ms = 120.0 if preset == "echo" else 0.0
    held = {request.request_id: request.deadline_ms for request in mirror.table}
    assert held == {"on": 500.0 - waited_ms + first_ms, "off": math.inf}


def test_who_is_to_gain_a_token_is_due_anew_once_the_step_ends() -> None:
    mirror, slo = make_mirror(preset="bros"), Strategy.of("bros").token_slo
    held = [
        make_decode("decode"),
        make_request("whole", prompt=50),
        make_request("part", prompt=50),
        make_decode("off", Kind.OFFLINE),
    ]
    for request in held[:3]:
        slo.arrive(request, 900.0, 900.0)
    mirror.observe(held, [], 900, pace=Pace(now_ms=1000.0))
    step = [ScheduledRequest(each.request_id, each.kind, 1 if each.is_decode else 50) for each in held]
    step[2] = ScheduledRequest("part", Kind.ONLINE, 40)
    mirror.start(step)
    mirror.finish(step, 30.0)
    assert mirror.pace.now_ms == 1030.0
    due_ms = 1030.0 + slo.tpot_ms
    assert [each.deadline_ms for each in held] == [due_ms, due_ms, 900.0 + slo.ttft_ms, math.inf]


def test_only_who_runs_loses_its_kv() -> None:
    mirror = make_mirror()
    mirror.observe([make_decode("runs", context=100), make_request("waits")], [], 900)
    mirror.preempt(["waits", "gone"])
    assert mirror.num_free_blocks == 900 and list(mirror.table.running(Kind.ONLINE)) == ["runs"]
    mirror.preempt(["runs"])
    assert mirror.num_free_blocks == 907 and list(mirror.table.waiting(Kind.ONLINE)) == ["runs", "waits"]
    mirror.table.check_integrity()


def test_who_is_on_its_way_counts_until_it_is_told_of_or_gone() -> None:
    mirror = make_mirror()
    for request in (make_request("on"), make_request("off-1", Kind.OFFLINE), make_request("off-2", Kind.OFFLINE)):
        mirror.arrive(request)
    assert mirror.late == ["off-1", "off-2"]
    mirror.depart("off-1")
    mirror.observe([make_request("on"), make_decode("held")], [], 900)
    assert mirror.late == ["off-2"] and sorted(each.request_id for each in mirror.table) == ["held", "off-2", "on"]
    assert mirror.num_free_blocks == 900
    mirror.depart("held")
    assert mirror.num_free_blocks == 907, "what it had is free"
    mirror.depart("off-2")
    mirror.depart("unknown")
    assert (mirror.late, mirror.num_free_blocks) == ([], 907)
    assert [each.request_id for each in mirror.table] == ["on"]


def test_an_arrival_is_told_as_it_came_whatever_was_expected_of_it_meanwhile() -> None:
    mirror, request = make_mirror(), make_request("new", prompt=50)
    mirror.arrive(request)
    step = [ScheduledRequest("new", Kind.ONLINE, 50)]
    mirror.start(step)
    mirror.finish(step)
    mirror.arrive(request)
    assert len(mirror.table) == 1 and mirror.table.running(Kind.ONLINE)
    mirror.observe([], [], 1000)
    assert mirror.table.waiting(Kind.ONLINE) == {"new": make_request("new", prompt=50)}


def test_clients_are_served_by_what_steps_are_expected_to_give_them() -> None:
    mirror = make_mirror(online_order="vtc")
    waiting = [make_request("b", prompt=16, client="two"), make_request("c", prompt=16, client="one")]
    mirror.observe([make_decode("a", context=16), *waiting], [], 900)
    a = mirror.table.get("a")
    assert a is not None and mirror.table.online_order.counters() is not None
    before = mirror.table.online_order.counters()
    step = [ScheduledRequest("a", Kind.ONLINE, 1)]
    mirror.start(step)
    mirror.finish(step)
    after = mirror.table.online_order.counters()
    assert before is not None and after is not None
    assert after.tokens[a.client_id] > before.tokens[a.client_id]


@pytest.mark.parametrize(("kv_sharing", "takes"), [("recompute", True), ("keep-resident", False)])
def test_a_plan_takes_offline_blocks_by_the_sharing_but_for_those_in_a_step(kv_sharing: str, takes: bool) -> None:
    for in_flight, entered in ((0, takes), (1, False)):
        mirror, offline = make_mirror(kv_sharing=kv_sharing), make_decode("off", Kind.OFFLINE, context=160)
        offline.num_in_flight_tokens = in_flight
        mirror.observe([offline, make_request("on", prompt=150)], [], 5)
        schedule = mirror.plan(no_queue, UNBOUNDED, MODEL)
        assert ("on" in {entry.request_id for entry in schedule.entries}) is entered
        assert schedule.preempted == (["off"] if entered else [])


def test_what_is_told_to_be_wanted_keeps_out_who_would_evict_it() -> None:
    mirror = make_mirror(preset="echo")
    queue = queue_of([make_request("new", Kind.OFFLINE, prompt=160)])
    for num_wanted, entered in ((0, ["off", "new"]), (40, ["off"])):
        mirror.observe([make_decode("off", Kind.OFFLINE, context=90)], [], 40, num_wanted_blocks=num_wanted)
        schedule = mirror.plan(queue, Strategy.of("echo").policy(None), MODEL)
        assert [entry.request_id for entry in schedule.entries] == entered
