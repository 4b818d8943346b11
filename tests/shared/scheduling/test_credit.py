"""What offline work may add to steps, and what of that is left: books that are kept step by step."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.scheduling.credit import (
    FIRST_STEPS,
    LEAST_DRIFT,
    MOST_DRIFT,
    MOST_EXTRA,
    MOST_SURPRISE,
    NO_SHARE,
    NUM_PROBES,
    OWED_STEPS,
    PERIOD,
    SAVED_STEPS,
    Credit,
    OnlineShare,
)

drifts = st.floats(LEAST_DRIFT, MOST_DRIFT)
seen = st.integers(0, 40)
steps = st.integers(0, 3 * PERIOD), st.integers(0, 3)
credits = st.builds(Credit, st.floats(-5000, 5000), drifts, *steps, seen, drifts, seen)
shares = st.builds(OnlineShare, st.integers(1, 30), st.floats(0.5, 200), st.floats(0, 0.5), st.booleans())


def online_ms(credit: Credit, share: OnlineShare, alone_ms: float) -> float:
    """What online requests wait together while a step takes so much longer."""
    return share.num_requests * credit.drift_of(share) * alone_ms


@given(credits, shares)
def test_a_step_adds_no_more_than_is_paid_for_and_no_less_than_it_may(credit: Credit, share: OnlineShare) -> None:
    """Never more than the step again, and where somebody waits for a first token no more than it earns itself."""
    extra_ms = credit.extra_ms(share)
    assert credit.budget_ms(share) == pytest.approx(share.alone_ms + extra_ms)
    bounds_ms = [credit.saved_ms / online_ms(credit, share, 1.0), MOST_EXTRA * share.alone_ms]
    if share.has_prompts:
        bounds_ms[1] = share.tolerance * share.alone_ms
    is_seen = credit.num_steps % PERIOD < NUM_PROBES or credit.num_seen_of(share) < FIRST_STEPS
    assert extra_ms == pytest.approx(0.0 if is_seen else max(0.0, min(bounds_ms)))


@given(credits, shares, st.floats(0, 3))
def test_a_step_earns_its_tolerance_and_pays_what_it_adds(credit: Credit, share: OnlineShare, times: float) -> None:
    """As far as may be saved, or owed."""
    extra_ms = times * share.alone_ms
    after = credit.started(share, share.alone_ms + extra_ms)
    earned_ms = online_ms(credit, share, share.tolerance * share.alone_ms - extra_ms)
    step_ms = online_ms(credit, share, MOST_EXTRA * share.alone_ms)
    assert -OWED_STEPS * step_ms <= after.saved_ms <= SAVED_STEPS * step_ms
    expected_ms = credit.saved_ms + earned_ms
    if -OWED_STEPS * step_ms < after.saved_ms < SAVED_STEPS * step_ms:
        assert after.saved_ms == pytest.approx(expected_ms, abs=1e-6)
    else:
        assert (after.saved_ms > 0) is (expected_ms > 0)
    assert after.num_steps == credit.num_steps + 1
    assert learnt(after) == learnt(credit)


@given(credits, shares, st.lists(st.booleans(), max_size=6))
def test_steps_alone_are_counted_in_a_row(credit: Credit, share: OnlineShare, alone: list[bool]) -> None:
    in_a_row = credit.num_alone
    for is_alone in alone:
        credit = credit.started(share, share.alone_ms if is_alone else 1.5 * share.alone_ms)
        in_a_row = in_a_row + 1 if is_alone else 0
        assert credit.num_alone == in_a_row


@given(credits, shares, st.floats(1.01, 3), st.floats(0, 10))
def test_what_a_step_with_offline_work_took_beyond_its_prediction_is_paid_too(
    credit: Credit, share: OnlineShare, planned: float, took: float
) -> None:
    """And what it took less is saved; of steps alone it says nothing."""
    planned_ms = planned * share.alone_ms
    drift = credit.drift_of(share)
    turn_ms = took * drift * planned_ms
    after = credit.measured(share, planned_ms, turn_ms)
    beyond_ms = share.num_requests * (turn_ms - drift * planned_ms)
    assert after.saved_ms == pytest.approx(credit.saved_ms - beyond_ms, abs=1e-6)
    assert learnt(after) == learnt(credit)


@given(credits, shares, st.floats(0.01, 20))
def test_a_step_alone_says_what_steps_of_its_kind_take_alone(credit: Credit, share: OnlineShare, times: float) -> None:
    """Of the first the fastest counts; of the later ones each as much as one of all before it, and a twentieth at
    least, upwards at most as one that took a quarter longer. The first without prompts that comes after others says
    nothing. Nothing is paid for it."""
    before, num_seen = credit.drift_of(share), credit.num_seen_of(share)
    after = credit.measured(share, share.alone_ms, times * share.alone_ms)
    drift = after.drift_of(share)
    assert LEAST_DRIFT <= drift <= MOST_DRIFT and after.saved_ms == credit.saved_ms
    of_others = replace(share, has_prompts=not share.has_prompts)
    assert after.drift_of(of_others) == credit.drift_of(of_others)
    assert after.num_seen_of(of_others) == credit.num_seen_of(of_others)
    if credit.num_alone < (1 if share.has_prompts else 2):
        assert after == credit
        return
    assert after.num_seen_of(share) == num_seen + 1
    if num_seen < FIRST_STEPS:
        fastest = min(before, times) if num_seen else times
        assert drift == pytest.approx(max(LEAST_DRIFT, min(MOST_DRIFT, fastest)))
    elif times > MOST_SURPRISE * before:
        assert drift == credit.measured(share, share.alone_ms, 1e6 * times * share.alone_ms).drift_of(share)
        assert drift >= before
    elif times != pytest.approx(before) and LEAST_DRIFT < drift < MOST_DRIFT:
        assert (drift - before) / (times - before) == pytest.approx(max(0.05, 1 / (num_seen + 1)), rel=1e-3)


@given(drifts, st.booleans(), st.lists(st.floats(0.97, 1.03), min_size=40, max_size=40))
def test_how_far_off_a_new_model_is_is_known_before_anything_is_added(
    factor: float, has_prompts: bool, noise: list[float]
) -> None:
    """Whatever was learnt of the one before: nothing is added until it is learnt anew, and then it is about right."""
    share, credit = OnlineShare(1, 10.0, 0.1, has_prompts), Credit(1e6, 3.0, NUM_PROBES, 5, 50, 2.0, 50)
    assert credit.extra_ms(share) > 0
    credit = credit.of_new_model()
    while not credit.extra_ms(share):
        credit = credit.started(share, share.alone_ms)
        credit = credit.measured(share, share.alone_ms, factor * noise.pop() * share.alone_ms)
    assert credit.drift_of(share) == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize("has_prompts", [False, True])
def test_of_what_was_seen_first_the_fastest_counts_and_then_each_as_much_as_one_before(has_prompts: bool) -> None:
    share, credit, times = OnlineShare(1, 10.0, 0.1, has_prompts), Credit(num_alone=2), list[float]()
    for number in range(20):
        times.append(1.0 + 0.05 * ((3 - number) % 5))
        credit = credit.measured(share, share.alone_ms, times[-1] * share.alone_ms)
        first = times[:FIRST_STEPS]
        expected = fmean([min(first)] * len(first) + times[FIRST_STEPS:])
        assert credit.drift_of(share) == pytest.approx(expected)


@given(credits, shares)
def test_a_step_that_a_model_before_predicted_says_nothing(credit: Credit, share: OnlineShare) -> None:
    """It runs when the model changes, or is the first after that where none has prompts."""
    credit = credit.of_new_model()
    assert credit.num_seen_of(share) == 0
    assert credit.measured(share, share.alone_ms, 3.0 * share.alone_ms) == credit
    started = credit.started(share, share.alone_ms)
    after = started.measured(share, share.alone_ms, 3.0 * share.alone_ms)
    assert after.num_seen_of(share) == share.has_prompts


def test_a_step_without_online_work_says_nothing() -> None:
    credit = Credit(num_alone=5)
    assert credit.measured(NO_SHARE, 0.0, 10.0) == credit


def learnt(credit: Credit) -> tuple[float, int, float, int]:
    return credit.drift, credit.num_seen, credit.prompt_drift, credit.num_prompts_seen
