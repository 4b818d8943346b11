"""Deadlines, what is left until them, and the order in which online requests are polled."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.packing.deadline_queue import DeadlineQueue, remaining_ms
from shared.scheduling.packing.pace import BASE_BATCH_SIZE, Pace
from shared.scheduling.packing.token_slo import TokenSlo
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from tests.shared.scheduling.deadlines import (
    LIMITS,
    NOW_MS,
    alone_ms,
    can_meet,
    held_online,
    left_ms,
    make_state,
    make_timed_table,
)
from tests.shared.scheduling.factories import make_request


def test_a_first_token_has_the_ttft_and_each_later_one_the_tpot() -> None:
    slo, request = TokenSlo(400.0, 200.0), make_request("r")
    slo.arrive(request, 1000.0)
    assert (request.deadline_ms, request.num_group_tokens_left) == (1400.0, 1)
    slo.advance(request, 1250.0)
    assert (request.deadline_ms, request.num_group_tokens_left) == (1450.0, 1)


def test_a_group_is_due_as_a_whole_and_what_is_missing_of_it_takes_steps() -> None:
    slo, request = TokenSlo(400.0, 50.0, group_tokens=4), make_request("r")
    slo.arrive(request, 0.0)
    slo.advance(request, 100.0)
    assert (request.deadline_ms, request.num_group_tokens_left) == (300.0, 4)
    pace = Pace(now_ms=150.0, mean_step_ms=20.0)
    assert remaining_ms(request, pace) == 300.0 - 150.0 - 3 * 20.0
    for now_ms in (140.0, 180.0, 290.0):  # one late, made up for within the group
        slo.advance(request, now_ms)
        assert request.deadline_ms == 300.0
    slo.advance(request, 300.0)
    assert (request.deadline_ms, request.num_group_tokens_left) == (500.0, 4)


@pytest.mark.parametrize("field", ["ttft_ms", "tpot_ms", "group_tokens"])
def test_an_slo_is_positive(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        replace(TokenSlo(), **{field: 0})


@given(held_online())
def test_polling_is_a_full_sort(held: list[Request]) -> None:
    state = make_state(make_timed_table(held))
    queue = DeadlineQueue(state)
    polled = list(queue.poll())
    in_table_order = [request for request in state.table if request.kind is Kind.ONLINE and not request.is_in_flight]
    # running, then those that lost their KV, then those that have never run: the order of the table, which breaks ties
    expected = sorted(in_table_order, key=lambda request: (not can_meet(request, state), left_ms(request, state.pace)))
    assert [timed.request.request_id for timed in polled] == [request.request_id for request in expected]
    assert [timed.remaining_ms for timed in polled] == [left_ms(request, state.pace) for request in expected]
    assert queue.has_late == any(not can_meet(request, state) for request in expected)
    assert queue.limit_ms == min((left_ms(r, state.pace) for r in expected if can_meet(r, state)), default=math.inf)


@given(held_online())
def test_polling_reads_no_further_once_nobody_can_enter(held: list[Request]) -> None:
    state = make_state(make_timed_table(held))
    whole = [timed.request for timed in DeadlineQueue(state).poll()]
    queue = DeadlineQueue(state)
    queue.close_entrance()
    polled = {timed.request.request_id for timed in queue.poll()}
    for request in whole:
        long_past = not request.is_running and request.deadline_ms <= NOW_MS
        assert (request.request_id in polled) == (not long_past)


@given(st.lists(st.booleans(), max_size=20), st.integers(1, 1000))
def test_the_batch_size_doubles_and_falls_back(hits: list[bool], max_num_seqs: int) -> None:
    pace, expected = Pace(), BASE_BATCH_SIZE
    for hit in hits:
        pace = pace.after(Schedule([], [], 0.0, hit_time_limit=hit), max_num_seqs)
        expected = min(BASE_BATCH_SIZE if hit else 2 * expected, max_num_seqs)
        assert pace.batch_size == expected <= max_num_seqs


def test_a_pace_remembers_whose_turn_was_last_and_how_long_steps_take() -> None:
    pace = Pace().after(Schedule([ScheduledRequest("a", Kind.OFFLINE, 1)], [], 5.0), 256).measured(40.0)
    assert (pace.last_kind, pace.mean_step_ms) == (Kind.OFFLINE, 40.0)
    assert pace.measured(50.0).mean_step_ms == pytest.approx(41.0)
    assert pace.after(Schedule([], [], 0.0), 256).last_kind is Kind.OFFLINE


def test_what_a_step_of_its_own_takes_decides_who_can_be_saved() -> None:
    """10 ms for any step, 0.5 for the prefill, 50 for its 100 tokens."""
    just, late = make_request("just", prompt=100), make_request("late", prompt=100)
    just.deadline_ms, late.deadline_ms = NOW_MS + 60.5, NOW_MS + 60.4
    assert alone_ms(just, LIMITS.max_num_batched_tokens) == 60.5
    queue = DeadlineQueue(make_state(make_timed_table([late, just])))
    assert [timed.request.request_id for timed in queue.poll()] == ["just", "late"]
    assert queue.limit_ms == 60.5 and queue.has_late
