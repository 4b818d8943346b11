"""The request table, and the mirror against an executor's true outcome."""

import pytest

from shared.latency.features import BatchFeatures
from shared.scheduling.planning.mirror import ARRIVAL_GRACE_STEPS
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.strategy import preset_named
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
