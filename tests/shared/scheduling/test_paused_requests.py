"""Schedules over offline requests that gave way and kept their KV, and the mirror's picture of them."""

from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.view import no_queue
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import ScheduledRequest
from tests.shared.scheduling.factories import (
    MODEL,
    TWO_PHASE,
    UNBOUNDED,
    make_decode,
    make_mirror,
    make_request,
    make_table,
    plan,
    step_state,
    tokens,
)

LIMITS = Limits(16, 20, 512, 64)


def make_paused(request_id: str, context: int, kept: int = 0) -> Request:
    request = make_decode(request_id, Kind.OFFLINE, context)
    request.num_kept_blocks = kept
    return request


def test_a_paused_request_runs_when_all_its_blocks_are_there_again() -> None:
    for free, expected in ((6, {}), (7, {"paused": 1})):
        table = make_table(make_paused("paused", 100))
        assert tokens(plan(table, limits=LIMITS, num_free_blocks=free)) == expected


def test_blocks_that_it_kept_are_not_needed_again() -> None:
    table = make_table(make_paused("paused", 100, kept=3))
    assert tokens(plan(table, limits=LIMITS, num_free_blocks=4)) == {"paused": 1}


def test_it_leaves_a_block_to_each_that_runs_and_comes_before_those_that_wait() -> None:
    running, waiting = make_decode("running", Kind.OFFLINE, 100), make_request("waiting", Kind.OFFLINE, 10)
    table = make_table(make_paused("paused", 100), running, waiting)
    assert tokens(plan(table, limits=LIMITS, num_free_blocks=7)) == {"running": 1}
    assert tokens(plan(table, limits=LIMITS, num_free_blocks=8)) == {"running": 1, "paused": 1}
    assert tokens(plan(table, limits=LIMITS, num_free_blocks=10)) == {"running": 1, "paused": 1, "waiting": 10}


def test_online_requests_take_blocks_of_paused_requests_before_another_gives_way() -> None:
    table = make_table(make_decode("running", Kind.OFFLINE, 100), make_paused("paused", 100))
    table.add(make_request("on", prompt=100))
    schedule = plan(table, limits=LIMITS, num_free_blocks=7)
    assert tokens(schedule) == {"on": 100, "running": 1} and schedule.preempted == []
    table.add(make_request("more", prompt=80))
    schedule = plan(table, limits=LIMITS, num_free_blocks=7)
    assert tokens(schedule) == {"on": 100, "more": 80} and schedule.preempted == ["running"]


def test_a_plan_that_brings_back_a_paused_request_is_cut_where_online_requests_came() -> None:
    table = make_table(make_paused("paused", 100))
    entries = [ScheduledRequest("paused", Kind.OFFLINE, 1)]
    state = step_state(table, LIMITS, num_free_blocks=7)
    assert tokens(TWO_PHASE.reconcile(state, entries, [])) == {"paused": 1}
    table.add(make_request("on", prompt=16))
    schedule = TWO_PHASE.reconcile(state, entries, [])
    assert tokens(schedule) == {"on": 16} and schedule.num_dropped == 1


def test_the_mirror_pauses_and_brings_back() -> None:
    mirror = make_mirror(LIMITS, kv_sharing="bidirectional")
    offline, online = make_decode("off", Kind.OFFLINE, 100), make_decode("on", context=100)
    mirror.observe([online, offline], [], 6)
    mirror.preempt(["off", "on"])
    assert offline.is_paused and offline.num_computed_tokens == 100
    assert mirror.num_free_blocks == 20 and not online.is_running
    mirror.preempt(["off"])
    assert mirror.num_free_blocks == 20
    mirror.start([ScheduledRequest("off", Kind.OFFLINE, 1)])
    assert not offline.is_paused and (offline.num_blocks, mirror.num_free_blocks) == (7, 13)
    mirror.finish([ScheduledRequest("off", Kind.OFFLINE, 1)])
    mirror.preempt(["off"])
    mirror.depart("off")
    assert mirror.num_free_blocks == 20
    assert tokens(mirror.plan(no_queue, UNBOUNDED, MODEL)) == {"on": 101}
    mirror.table.check_integrity()


def test_what_comes_back_in_one_step_is_held_to_the_budget_but_for_the_first() -> None:
    limits = Limits(16, 40, 512, 64, swap_ms_per_slot=1.0)
    for missing, expected in (((100, 40, 1), ["p0", "p1"]), ((100, 60, 1), ["p0"]), ((900, 1, 1), ["p0"])):
        paused = [make_paused(f"p{index}", 100) for index in range(3)]
        for request, num_missing_slots in zip(paused, missing, strict=True):
            request.num_missing_slots = num_missing_slots
        schedule = plan(make_table(*paused), limits=limits, policy=Policy(140.0), num_free_blocks=40)
        assert list(tokens(schedule)) == expected
