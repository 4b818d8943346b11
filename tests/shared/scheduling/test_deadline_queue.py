"""Deadlines, what is left until them, and the order in which online requests are polled."""

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.latency.features import BatchFeatures, attention_pairs
from shared.scheduling.kv.request_cache import Found
from shared.scheduling.packing.deadlines.deadline_queue import DeadlineQueue
from shared.scheduling.request import Kind, Request
from tests.shared.scheduling.deadlines import (
    LIMITS,
    NOW_MS,
    PACE,
    alone_ms,
    can_meet,
    due,
    held_online,
    left_ms,
    make_state,
    make_timed_table,
)
from tests.shared.scheduling.factories import EXACT, CacheOf, make_decode, make_request


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


def test_what_a_step_of_its_own_takes_decides_who_can_be_saved() -> None:
    """10 ms for any step, 0.5 for the prefill, 50 for its 100 tokens."""
    just, late = make_request("just", prompt=100), make_request("late", prompt=100)
    just.deadline_ms, late.deadline_ms = NOW_MS + 60.5, NOW_MS + 60.4
    assert alone_ms(just, LIMITS.max_num_batched_tokens) == 60.5
    queue = DeadlineQueue(make_state(make_timed_table([late, just])))
    assert [timed.request.request_id for timed in queue.poll()] == ["just", "late"]
    assert queue.limit_ms == 60.5 and queue.has_late


def test_who_has_lost_its_kv_and_is_late_comes_by_what_is_left_then_by_its_place() -> None:
    lost = [
        due(make_request(name, prompt=20), in_ms) for name, in_ms in zip("abcd", (-1.0, -9.0, -1.0, -1.0), strict=True)
    ]
    for request in lost:
        request.was_admitted = True
    queue = DeadlineQueue(make_state(make_timed_table(lost)))
    assert queue.has_late and [timed.request.request_id for timed in queue.poll()] == list("bacd")


@pytest.mark.parametrize("max_tokens", [1, 512])
@pytest.mark.parametrize("context", [99, 1600])
def test_a_decode_can_be_saved_where_its_next_token_alone_is_in_time(context: int, max_tokens: int) -> None:
    """To the last token that it reads, whoever else is here."""
    limits = replace(LIMITS, max_num_batched_tokens=max_tokens)
    needed_ms = EXACT.predict_ms(BatchFeatures(0, 0, context + 1, 1))
    for in_ms, is_saved in ((needed_ms, True), (needed_ms - 1 / 64, False)):
        decode, short = due(make_decode("decode", context=context), in_ms), due(make_decode("short", context=20), 400.0)
        queue = DeadlineQueue(replace(make_state(make_timed_table([decode, short]), limits=limits), model=EXACT))
        assert [timed.request.request_id for timed in queue.poll()][0 if is_saved else 1] == "decode"
        assert queue.has_late is not is_saved


@pytest.mark.parametrize("was_admitted", [False, True])
def test_what_the_cache_has_of_a_prompt_counts_for_how_long_the_rest_takes(was_admitted: bool) -> None:
    """Attention to it takes longer than the 16 tokens of a step alone."""
    waiting, limits = make_request("waiting", prompt=160), replace(LIMITS, max_num_batched_tokens=16)
    waiting.was_admitted = was_admitted
    cache = CacheOf({"waiting": Found(144)})
    needed_ms = EXACT.predict_ms(BatchFeatures(16, 1, 0, 0, attention_pairs(16, 144)))
    for in_ms, is_late in ((needed_ms, False), (needed_ms - 1 / 64, True)):
        state = make_state(make_timed_table([due(waiting, in_ms)]), limits=limits)
        assert DeadlineQueue(replace(state, model=EXACT, cache=cache)).has_late is is_late


def resumed(request: Request, in_ms: float) -> Request:
    """It was on another executor, and may be due whenever."""
    request.deadline_ms, request.num_resumed_tokens = NOW_MS + in_ms, 3
    return request


@given(held_online(), st.lists(st.integers(-5000, 5000), max_size=6), st.randoms(use_true_random=False))
def test_who_was_on_another_executor_makes_nobody_seem_late(held: list[Request], dues: list[int], rng: Random) -> None:
    fresh = [request for request in held if not request.is_running and not request.was_admitted]
    elsewhere = [resumed(make_request(prompt=10), in_ms) for in_ms in dues]
    mixed = [request for request in held if request not in fresh]
    places = sorted(rng.randrange(len(fresh) + 1) for _ in elsewhere)
    for place, request in reversed(list(zip(places, elsewhere, strict=True))):
        fresh.insert(place, request)
    state = make_state(make_timed_table(mixed + fresh))
    without = make_state(make_timed_table([request for request in mixed + fresh if request not in elsewhere]))
    polled = [timed.request for timed in DeadlineQueue(state).poll()]
    expected = [timed.request for timed in DeadlineQueue(without).poll()]
    assert sorted(id(each) for each in polled) == sorted(id(each) for each in [*expected, *elsewhere])
    last_late = max((n for n, request in enumerate(fresh) if _is_fresh_and_past(request)), default=0)
    passed_over = [request for request in fresh[:last_late] if request in elsewhere]
    in_time = [request for request in polled if can_meet(request, state) and request not in passed_over]
    assert polled[: len(in_time)] == in_time
    assert [left_ms(request, PACE) for request in in_time] == sorted(left_ms(request, PACE) for request in in_time)
    assert [request for request in in_time if request not in elsewhere] == [r for r in expected if can_meet(r, state)]


def _is_fresh_and_past(request: Request) -> bool:
    return request.num_resumed_tokens is None and request.deadline_ms <= NOW_MS
