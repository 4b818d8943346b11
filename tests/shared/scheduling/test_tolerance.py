"""Offline work that may make online tokens come later by a share of their time, in the mean."""

import random

import pytest
from msgspec.structs import replace

from shared.scheduling.credit import FIRST_STEPS, NUM_PROBES, PERIOD, Credit, OnlineShare
from shared.scheduling.orders.offline.view import no_queue
from shared.scheduling.packing.pace import Pace
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from tests.shared.scheduling.factories import LIMITS, TWO_PHASE, make_decode, make_request, make_table, step_state

TOLERANCE = 0.05
POLICY = Policy(0.0, tolerance=TOLERANCE)


@pytest.mark.parametrize("num_online", [1, 4])
@pytest.mark.parametrize("truth", [1.0, 0.5, 2.0])
def test_the_mean_keeps_the_tolerance_whatever_the_model_says(num_online: int, truth: float) -> None:
    """``truth``: what a step takes, over what the model says, noise aside."""
    rng, pace = random.Random(1), Pace()
    online = [make_decode() for _ in range(num_online)]
    offline = [make_decode(kind=Kind.OFFLINE) for _ in range(40)]
    taken_ms = alone_ms = 0.0
    num_offline = 0
    for step in range(4000):
        state = step_state(make_table(*online, *offline), policy=POLICY, pace=pace)
        schedule = TWO_PHASE.schedule(state, no_queue)
        assert TWO_PHASE.reconcile(state, schedule.entries, []).entries == schedule.entries
        step_ms = truth * schedule.latency_ms * rng.uniform(0.9, 1.1)
        pace = pace.after(schedule, LIMITS.max_num_seqs).measured(step_ms, step_ms, schedule.share, schedule.latency_ms)
        if step >= 1000:  # by then it knows what the model's word is worth
            taken_ms, alone_ms = taken_ms + step_ms, alone_ms + truth * schedule.share.alone_ms
            num_offline += len(schedule.entries) - num_online
    assert taken_ms / alone_ms < 1 + TOLERANCE + 0.01
    assert taken_ms / alone_ms > 1 + 0.5 * TOLERANCE and num_offline > 1000


def test_it_starts_with_nothing_and_is_looked_at_alone_now_and_then() -> None:
    pace, table = Pace(), make_table(make_decode("a"), *(make_decode(kind=Kind.OFFLINE) for _ in range(8)))
    steps_alone = []
    for step in range(3 * PERIOD):
        schedule = TWO_PHASE.schedule(step_state(table, policy=POLICY, pace=pace), no_queue)
        if len(schedule.entries) == 1:
            steps_alone.append(step)
        pace = pace.after(schedule, LIMITS.max_num_seqs)
    for first in (0, PERIOD, 2 * PERIOD):
        assert set(range(first, first + NUM_PROBES)) <= set(steps_alone)


def test_who_waits_for_a_first_token_pays_for_no_other_steps_savings() -> None:
    known = Credit(num_seen=FIRST_STEPS, num_prompts_seen=FIRST_STEPS)
    pace = Pace(credit=replace(known, saved_ms=1e6, num_steps=NUM_PROBES))
    offline = [make_decode(kind=Kind.OFFLINE) for _ in range(40)]
    decodes = step_state(make_table(make_decode("a"), *offline), policy=POLICY, pace=pace)
    schedule = TWO_PHASE.schedule(decodes, no_queue)
    assert schedule.share.alone_ms < schedule.latency_ms <= 2 * schedule.share.alone_ms
    prompt = step_state(make_table(make_request("p", prompt=300), *offline), policy=POLICY, pace=pace)
    schedule = TWO_PHASE.schedule(prompt, no_queue)
    assert schedule.share.has_prompts
    assert schedule.share.alone_ms < schedule.latency_ms <= (1 + TOLERANCE) * schedule.share.alone_ms


def test_without_online_requests_a_step_is_as_long_as_it_may_be() -> None:
    table = make_table(*(make_request(kind=Kind.OFFLINE, prompt=400) for _ in range(4)))
    full = TWO_PHASE.schedule(step_state(table, policy=Policy(0.0, idle_budget_ms=1e9, tolerance=0.0)), no_queue)
    assert sum(entry.num_scheduled_tokens for entry in full.entries) == LIMITS.max_num_batched_tokens
    assert full.share.num_requests == 0


def test_after_an_interruption_steps_without_online_requests_are_shorter_for_a_while() -> None:
    table = make_table(*(make_request(kind=Kind.OFFLINE, prompt=400) for _ in range(4)))
    policy, pace, times_ms = Policy(0.0, idle_budget_ms=1e9, tolerance=0.0), Pace(), []
    for is_interrupted in (True, True, False, False, False):
        schedule = TWO_PHASE.schedule(step_state(table, policy=policy, pace=pace), no_queue)
        times_ms.append(schedule.latency_ms)
        pace = pace.after(schedule, LIMITS.max_num_seqs)
        pace = pace.interrupted(schedule.latency_ms) if is_interrupted else pace.measured(schedule.latency_ms)
    assert times_ms[1] <= times_ms[0] / 2 and times_ms[2] <= times_ms[1] / 2
    assert times_ms[2] < times_ms[3] < times_ms[4] <= times_ms[0]


def test_what_steps_take_alone_is_measured_where_two_in_a_row_were_alone() -> None:
    credit, share = Credit(num_seen=20), OnlineShare(1, 10.0, TOLERANCE)
    after_others = credit.started(share, 14.0).measured(share, 14.0, 14.0).started(share, 10.0)
    assert after_others.measured(share, 10.0, 20.0).drift == 1.0
    assert 1.0 < after_others.started(share, 10.0).measured(share, 10.0, 20.0).drift < 1.1


def test_steps_that_met_something_else_hardly_count_as_what_steps_take_alone() -> None:
    credit, share = Credit(), OnlineShare(1, 10.0, TOLERANCE)
    for turn_ms in (10.0, 10.0, 1000.0, 10.0, 10.0):
        credit = credit.started(share, 10.0).measured(share, 10.0, turn_ms)
    assert 1.0 <= credit.drift < 1.02


@pytest.mark.parametrize("times", [0.5, 2.0])
def test_what_steps_take_alone_is_found_whatever_the_model_says(times: float) -> None:
    credit, share = Credit(), OnlineShare(1, 10.0, TOLERANCE)
    for _ in range(200):
        credit = credit.started(share, 10.0).measured(share, 10.0, times * 10.0)
    assert credit.drift == pytest.approx(times, rel=0.02)
