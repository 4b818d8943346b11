"""The drift tests: silent on noise however long, and awake within seconds when the machine changes."""

import random
from itertools import pairwise

import pytest

from services.predictor.drift import Drift, DriftDetector

MEAN_DEVIATION = 0.798  # of a normal distribution, in sigmas


def first_drift(sigma: float, factor: float, seed: int, num_samples: int, before: int = 0) -> tuple[int, Drift] | None:
    """``factor`` times as slow from sample ``before`` on; the number of the sample that told."""
    rng = random.Random(seed)
    detector = DriftDetector(sigma * MEAN_DEVIATION)
    for number in range(num_samples):
        slower = factor if number >= before else 1.0
        drift = detector.add(number, 20.0 * slower * rng.lognormvariate(0, sigma), 20.0)
        if drift is not None:
            return number, drift
    return None


@pytest.mark.parametrize("sigma", [0.0, 0.01, 0.03, 0.1, 0.3])
def test_noise_alone_is_no_drift(sigma: float) -> None:
    assert first_drift(sigma, 1.0, seed=1, num_samples=100_000) is None


@pytest.mark.parametrize("sigma", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("factor", [1.3, 1 / 1.3])
def test_a_third_more_or_less_is_seen_within_thirty_steps(sigma: float, factor: float) -> None:
    for seed in range(20):
        found = first_drift(sigma, factor, seed, num_samples=600, before=500)
        assert found is not None
        number, drift = found
        assert 500 + 20 <= number < 500 + 32
        assert drift.ratio == pytest.approx(factor, rel=0.06)
        assert drift.first == pytest.approx(500, abs=6)


def test_a_tenth_is_seen_and_a_fiftieth_allowed() -> None:
    found = first_drift(0.01, 1.1, seed=2, num_samples=200)
    assert found is not None and found[1].ratio == pytest.approx(1.1, rel=0.02)
    assert first_drift(0.01, 1.02, seed=3, num_samples=100_000) is None


@pytest.mark.parametrize("sigma", [0.01, 0.15])
@pytest.mark.parametrize("factor", [50.0, 4.0])
def test_a_stall_is_no_drift(sigma: float, factor: float) -> None:
    rng = random.Random(6)
    detector = DriftDetector(sigma * MEAN_DEVIATION)
    for number in range(5000):
        stalled = factor if number % 200 < 12 else 1.0
        assert detector.add(number, 20.0 * stalled * rng.lognormvariate(0, sigma), 20.0) is None


@pytest.mark.parametrize("every", [3, 10, 30])
def test_a_model_that_follows_at_once_does_not_hide_a_drift(every: int) -> None:
    rng = random.Random(4)
    detector, predicted_ms = DriftDetector(0.01), 20.0
    for number in range(1, 100):
        measured_ms = 26.0 * rng.lognormvariate(0, 0.01)
        drift = detector.add(number, measured_ms, predicted_ms)
        if drift is not None:
            assert number < 30 and drift.ratio == pytest.approx(1.3, rel=0.04)
            return
        if number % every == 0:
            detector.follow(measured_ms / predicted_ms)
            predicted_ms = measured_ms
    raise AssertionError("not seen")


def test_a_better_model_is_no_drift() -> None:
    rng = random.Random(5)
    detector = DriftDetector(0.02)
    for number in range(10_000):
        if number % 1000 == 999:
            detector.follow(1.08 if number % 2000 == 999 else 1 / 1.08)
        assert detector.add(number, 20.0 * rng.lognormvariate(0, 0.02), 20.0) is None


def test_after_an_alarm_the_test_begins_anew() -> None:
    detector = DriftDetector(0.01)
    found = [(number, drift) for number in range(100) if (drift := detector.add(number, 26.0, 20.0)) is not None]
    assert len(found) > 3
    assert len({later - earlier for (earlier, _), (later, _) in pairwise(found)}) == 1
    assert all(drift.first == earlier + 1 for (earlier, _), (_, drift) in pairwise(found))
