"""Offline requests at a fixed rate."""

import math

import pytest

from shared.scheduling.orders.offline.rate import OfflineRate
from shared.scheduling.request import Kind, Request
from shared.scheduling.strategy import PRESETS, Strategy

QUEUE = [Request(f"r{number}", Kind.OFFLINE, 10, 20) for number in range(8)]


def num_open(rate: OfflineRate, now_s: float) -> int:
    return len(list(rate.open(QUEUE, now_s)))


def test_one_more_may_enter_every_period() -> None:
    rate = OfflineRate(2.0)
    assert [num_open(rate, now_s) for now_s in (10.0, 10.4, 10.5, 11.1)] == [1, 1, 2, 3]
    rate.enter(3)
    assert num_open(rate, 11.1) == 0
    assert rate.next_s(11.1) == 11.5
    assert num_open(rate, 11.5) == 1
    assert rate.next_s(11.5) is None


def test_time_without_anybody_waiting_counts_for_nothing() -> None:
    rate = OfflineRate(1.0)
    assert rate.next_s(0.0) is None, "nothing has begun"
    assert num_open(rate, 0.0) == 1
    rate.enter(1)
    assert rate.next_s(0.0) == 1.0
    rate.rest()
    assert num_open(rate, 100.0) == 1


def test_who_comes_when_nobody_waits_enters_a_period_after_the_last() -> None:
    rate, entered_s = OfflineRate(2.0), list[float]()
    for now_s in (0.0, 0.25, 0.5, 0.75, 1.0, 7.0):
        rate.rest()
        if num_open(rate, now_s):
            rate.enter(1)
            entered_s.append(now_s)
        assert rate.next_s(now_s) == entered_s[-1] + 0.5
        rate.rest()
        rate.rest()
        assert rate.next_s(now_s) == entered_s[-1] + 0.5
        assert rate.next_s(entered_s[-1] + 0.5) is None
    assert entered_s == [0.0, 0.5, 1.0, 7.0]


@pytest.mark.parametrize("qps", [0.3, 7.0, 100.0, 1234.5])
@pytest.mark.parametrize("start_s", [0.0, 0.1, 1e5, 3e7])
def test_whoever_is_told_to_wait_may_enter_then(qps: float, start_s: float) -> None:
    """After months too, whatever rounding does to seconds and rates."""
    for num_entered in (1, 2, 10, 999, 10**6, 10**9):
        rate = OfflineRate(qps)
        assert num_open(rate, start_s) == 1
        rate.enter(num_entered)
        for _ in range(50):
            next_s = rate.next_s(start_s)
            assert next_s is not None
            assert num_open(rate, math.nextafter(next_s, 0.0)) == 0
            assert num_open(rate, next_s) >= 1
            rate.enter(1)


def test_an_infinite_rate_holds_nobody_back() -> None:
    rate = OfflineRate()
    assert num_open(rate, 0.0) == len(QUEUE)
    assert rate.next_s(0.0) is None


def test_a_rate_is_for_the_preset_that_uses_it() -> None:
    assert Strategy.of("hygen-star", offline_qps=3.0).make_offline_rate().qps == 3.0
    with pytest.raises(ValueError, match="give --offline-qps"):
        PRESETS["hygen-star"].make_offline_rate()
    with pytest.raises(ValueError, match="leave --offline-qps out"):
        Strategy.of("hygen", offline_qps=3.0)
    with pytest.raises(ValueError, match="must be above 0"):
        OfflineRate(0.0)
