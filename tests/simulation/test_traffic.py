"""Bursts and quiet spells."""

import math
import random

import pytest

from tests.simulation.traffic import BURSTS_S, BUSY, MIXED, QUIET, QUIET_TIMES, SPELLS_S, Traffic


def test_bursts_and_quiet_spells_follow_each_other() -> None:
    traffic = Traffic([100.0, 400.0, 450.0, 1000.0])
    quiet = [traffic.quiet_s(at_s) for at_s in (0.0, 99.0, 100.0, 399.0, 400.0, 449.0, 450.0, 999.0, 1000.0)]
    assert quiet == [0.0, 0.0, 300.0, 1.0, 0.0, 0.0, 550.0, 1.0, 0.0]
    assert Traffic().quiet_s(5.0) == 0.0


def test_a_short_run_is_one_burst() -> None:
    for seed in range(20):
        assert not Traffic.draw(MIXED, str(seed), 30.0, 30.0 + min(BURSTS_S)).quiet_s(60.0)


def test_a_run_may_be_all_busy_or_all_quiet() -> None:
    busy, quiet = (Traffic.draw(kind, "3", 0.0, 3600.0) for kind in (BUSY, QUIET))
    assert not any(busy.quiet_s(at_s) for at_s in (0.0, 1800.0, 3599.0))
    assert all(quiet.quiet_s(at_s) == math.inf for at_s in (0.0, 1800.0, 3599.0))
    rng = random.Random(7)
    waits_s = [quiet.next_fault_s(100.0, 10.0, rng) - 100.0 for _ in range(2000)]
    assert sum(waits_s) / len(waits_s) == pytest.approx(10.0 * QUIET_TIMES, rel=0.1)


def test_most_of_a_long_run_is_quiet() -> None:
    traffic = Traffic.draw(MIXED, "3", 0.0, 1e6)
    share = sum(traffic.quiet_s(float(at_s)) > 0 for at_s in range(0, 1_000_000, 100)) / 10_000
    expected = sum(SPELLS_S) / len(SPELLS_S)
    assert share == pytest.approx(expected / (expected + sum(BURSTS_S) / len(BURSTS_S)), abs=0.03)


def test_faults_are_as_rare_as_work_is() -> None:
    traffic, rng = Traffic([1e5, 1e6]), random.Random(7)
    at_s, in_burst, in_spell = 0.0, 0, 0
    while at_s < 1e6:
        at_s = traffic.next_fault_s(at_s, 10.0, rng)
        in_burst += at_s < 1e5
        in_spell += 1e5 <= at_s < 1e6
    assert in_burst == pytest.approx(1e4, rel=0.05)
    assert in_spell == pytest.approx(9e5 / (10.0 * QUIET_TIMES), rel=0.1)
