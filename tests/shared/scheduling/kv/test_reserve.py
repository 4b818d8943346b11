"""The reserve for bursts: moments by hand, and against numpy over what was seen at each moment."""

import math
import random

import numpy as np
import pytest

from shared.scheduling.kv.reserve import KV_RESERVES, NUM_BUCKETS, BurstReserve, make_reserve


def test_moments_by_hand() -> None:
    reserve = BurstReserve(window_s=60.0, num_sigmas=2.0)
    assert reserve.num_blocks(0) == 0
    reserve.observe(0.0, 10)
    assert reserve.num_blocks(0) == 0  # for no time yet
    reserve.observe(3.0, 50)
    reserve.observe(4.0, 0)
    # 3 s of 10 blocks and 1 s of 50: mean 20, variance (3 * 100 + 2500) / 4 - 400 = 300
    assert reserve.most_blocks() == pytest.approx(20 + 2 * math.sqrt(300))
    assert [reserve.num_blocks(held) for held in (0, 20, 54, 55, 100)] == [55, 35, 1, 0, 0]


def test_without_sigmas_it_is_the_mean_over_any_window() -> None:
    reserve = BurstReserve(window_s=0.5, num_sigmas=0.0)
    reserve.observe(0.0, 10)
    reserve.observe(0.1, 50)
    reserve.observe(0.2, 0)
    assert reserve.most_blocks() == pytest.approx(30.0)


def test_steady_work_needs_no_more_than_it_holds() -> None:
    reserve = BurstReserve(60.0, 2.0)
    for second in range(100):
        reserve.observe(float(second), 7)
    assert reserve.most_blocks() == pytest.approx(7.0) and reserve.num_blocks(7) == 0


def test_what_is_older_than_the_window_is_forgotten() -> None:
    reserve = BurstReserve(60.0, 3.0)
    reserve.observe(0.0, 1000)
    reserve.observe(30.0, 4)
    reserve.observe(80.0, 4)
    assert reserve.most_blocks() > 100
    reserve.observe(91.0, 4)
    assert reserve.most_blocks() == pytest.approx(4.0)


@pytest.mark.parametrize("silence_s", [58.0, 61.0, 500.0, 1e6])
def test_a_number_holds_until_the_next_comes(silence_s: float) -> None:
    reserve = BurstReserve(60.0, 2.0)
    reserve.observe(1.0, 900)
    reserve.observe(2.0, 40)
    reserve.observe(2.0 + silence_s, 0)
    is_forgotten = silence_s > 60
    assert (reserve.most_blocks() == pytest.approx(40.0)) is is_forgotten
    assert len(reserve._ended) <= NUM_BUCKETS


@pytest.mark.parametrize("seed", range(8))
def test_moments_are_those_of_all_moments_of_the_window(seed: int) -> None:
    rng = random.Random(seed)
    window_s, now_s, held = 120.0, 1000.0 * rng.random(), 0
    bucket_s = window_s / NUM_BUCKETS
    reserve = BurstReserve(window_s, 2.0)
    seen: list[tuple[float, float, int]] = []  # from, to, blocks
    start_s = now_s
    reserve.observe(now_s, held)
    for _ in range(400):
        duration_s = rng.choice([0.0, rng.expovariate(1.0), rng.expovariate(0.05), rng.expovariate(0.005)])
        seen.append((now_s, now_s + duration_s, held))
        now_s += duration_s
        held = rng.randint(0, 500)
        reserve.observe(now_s, held)
        oldest_s = max(start_s, (now_s // bucket_s - NUM_BUCKETS + 1) * bucket_s)
        weights = np.array([max(0.0, end_s - max(begin_s, oldest_s)) for begin_s, end_s, _ in seen])
        if weights.sum() == 0:
            continue
        values = np.array([blocks for *_, blocks in seen])
        mean = np.average(values, weights=weights)
        sigma = math.sqrt(np.average((values - mean) ** 2, weights=weights))
        assert reserve.most_blocks() == pytest.approx(mean + 2 * sigma, rel=1e-6, abs=1e-3)
    assert now_s - start_s > 10 * window_s


def test_no_reserve_is_none() -> None:
    reserve = make_reserve("none", 3600.0, 2.0)
    reserve.observe(0.0, 100)
    reserve.observe(10.0, 0)
    assert reserve.num_blocks(0) == 0


def test_bad_settings_are_refused() -> None:
    assert list(KV_RESERVES) == ["none", "burst"]
    with pytest.raises(ValueError, match="unknown KV reserve 'all'; known: none, burst"):
        make_reserve("all", 1.0, 1.0)
    for window_s, num_sigmas in ((0.0, 2.0), (10.0, -1.0)):
        with pytest.raises(ValueError, match="a window over 0 s and at least 0 sigmas"):
            BurstReserve(window_s, num_sigmas)
