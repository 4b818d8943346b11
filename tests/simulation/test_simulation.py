"""Whole runs: the same seed gives the same, and nothing is broken."""

import io
import json

import pytest

from tests.simulation.run import Order, Outcome, faults_of, simulate
from tests.simulation.setup import draw_setup
from tests.simulation.traffic import BUSY

SECONDS = 1 / 3600.0


def _logged(order: Order) -> tuple[Outcome, str]:
    log = io.StringIO()
    return simulate(order, log), log.getvalue()


def test_the_same_seed_gives_the_same_run_to_the_byte() -> None:
    (first, log), (second, other) = (_logged(Order(3, 60 * SECONDS)) for _ in range(2))
    differing = [pair for pair in zip(log.splitlines(), other.splitlines(), strict=False) if pair[0] != pair[1]]
    assert not differing[:1]
    assert first.digest == second.digest
    assert first.num_turns == second.num_turns
    assert json.dumps(first.setup.told()) in log.splitlines()[0]


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_broken_under_faults(seed: int) -> None:
    outcome = simulate(Order(seed, 120 * SECONDS))
    assert not outcome.violations
    assert outcome.summary.events.total() == len(outcome.faults) > 0
    assert outcome.summary.streams["done"] > 0


def test_a_hang_reaches_the_watchdog() -> None:
    """Of a stack whose steps may take ten seconds, in which the engine hangs for longer."""
    orders = (Order(seed, 240 * SECONDS, kinds=("hang",), traffic=BUSY) for seed in range(100))
    outcomes = (simulate(order) for order in orders if _hangs_for_long(order))
    outcome = next(each for each in outcomes if each.violations or each.summary.ends["hang"])  # it had a step to do
    assert not outcome.violations


def _hangs_for_long(order: Order) -> bool:
    step_timeout_s = draw_setup(str(order.seed)).step_timeout_s
    return any(fault.lasts_s >= 3.0 * step_timeout_s for fault in faults_of(order))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 108))
def test_nothing_is_broken_in_a_quarter_of_an_hour(seed: int) -> None:
    assert not simulate(Order(seed, 0.25)).violations
