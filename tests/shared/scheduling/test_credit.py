"""What offline work may add to steps, and what of that is left: books that are kept step by step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.credit import (
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
credits = st.builds(Credit, st.floats(-5000, 5000), drifts, st.integers(0, 3 * PERIOD), st.integers(0, 3))
shares = st.builds(OnlineShare, st.integers(1, 30), st.floats(0.5, 200), st.floats(0, 0.5), st.booleans())


def online_ms(credit: Credit, share: OnlineShare, alone_ms: float) -> float:
    """What online requests wait together while a step takes so much longer."""
    return share.num_requests * credit.drift * alone_ms


@given(credits, shares)
def test_a_step_adds_no_more_than_is_paid_for_and_no_less_than_it_may(credit: Credit, share: OnlineShare) -> None:
    """Never more than the step again, and where somebody waits for a first token no more than it earns itself."""
    extra_ms = credit.extra_ms(share)
    assert credit.budget_ms(share) == pytest.approx(share.alone_ms + extra_ms)
    bounds_ms = [credit.saved_ms / online_ms(credit, share, 1.0), MOST_EXTRA * share.alone_ms]
    if share.has_prompts:
        bounds_ms[1] = share.tolerance * share.alone_ms
    is_probe = credit.num_steps % PERIOD < NUM_PROBES
    assert extra_ms == pytest.approx(0.0 if is_probe else max(0.0, min(bounds_ms)))


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
    assert (after.num_steps, after.drift) == (credit.num_steps + 1, credit.drift)


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
    turn_ms = took * credit.drift * planned_ms
    after = credit.measured(share, planned_ms, turn_ms)
    beyond_ms = share.num_requests * (turn_ms - credit.drift * planned_ms)
    assert after.saved_ms == pytest.approx(credit.saved_ms - beyond_ms, abs=1e-6)
    assert after.drift == credit.drift


@given(credits, shares, st.floats(0.01, 20))
def test_a_step_alone_says_what_steps_alone_take(credit: Credit, share: OnlineShare, times: float) -> None:
    """A little at a time, upwards at most as from one that took a quarter longer; the first after others says nothing.
    Nothing is paid for it."""
    after = credit.measured(share, share.alone_ms, times * share.alone_ms)
    assert LEAST_DRIFT <= after.drift <= MOST_DRIFT and after.saved_ms == credit.saved_ms
    if credit.num_alone < 2:
        assert after == credit
    elif times > MOST_SURPRISE * credit.drift:
        assert after.drift == credit.measured(share, share.alone_ms, 1e6 * times * share.alone_ms).drift
        assert after.drift >= credit.drift
    elif times != credit.drift and LEAST_DRIFT < after.drift < MOST_DRIFT:
        assert 0 < (after.drift - credit.drift) / (times - credit.drift) < 0.1


def test_a_step_without_online_work_says_nothing() -> None:
    credit = Credit(num_alone=5)
    assert credit.measured(NO_SHARE, 0.0, 10.0) == credit
