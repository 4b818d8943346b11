"""Which faults are left of many."""

from collections.abc import Sequence

import pytest

from services.gateway.live.generation import Generation
from shared.protocol.tokens import TokenOutput
from tests.simulation.run import Order, faults_of, simulate
from tests.simulation.shrink import LEAST_HOURS, fewest, shrunk


@pytest.mark.parametrize("needed", [[], [3], [0, 19], [4, 5, 6], [1, 8, 13, 17]])
def test_only_those_that_are_needed_are_left(needed: list[int]) -> None:
    assert fewest(range(20), lambda numbers: all(number in numbers for number in needed)) == needed


def test_either_of_two_is_enough() -> None:
    def is_wrong(numbers: Sequence[int]) -> bool:
        return 4 in numbers or 11 in numbers

    assert len(fewest(range(16), is_wrong)) == 1


def test_a_run_is_cut_as_short_as_its_faults_allow() -> None:
    order, tried = Order(7, 8.0), list[Order]()
    wanted = faults_of(order)[3].number

    def is_wrong(smaller: Order) -> bool:
        return wanted in [fault.number for fault in faults_of(smaller)]

    smaller = shrunk(order, tried.append, is_wrong)
    assert smaller.faults == (wanted,)
    assert is_wrong(smaller)
    assert 2 * smaller.hours < LEAST_HOURS * 2 or len(faults_of(Order(7, smaller.hours / 2, faults=(wanted,)))) == 0
    assert tried[0] == Order(7, 4.0)


def test_faults_of_a_shorter_run_are_the_first_of_a_longer_one() -> None:
    longer, shorter = (faults_of(Order(5, hours)) for hours in (2.0, 0.5))
    assert 0 < len(shorter) < len(longer)
    assert longer[: len(shorter)] == shorter


@pytest.mark.slow
def test_of_the_faults_that_show_a_defect_few_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that takes whatever tokens come, also where some before them are missing."""

    def takes_all(generation: Generation, place: tuple[str, str], output: TokenOutput) -> bool:
        return True

    monkeypatch.setattr(Generation, "continues", takes_all)
    orders = [Order(seed, 120 / 3600.0, kinds=("lossy", "kill")) for seed in range(5, 30)]
    order = next(each for each in orders if len(faults_of(each)) > 4 and simulate(each).violations)
    smaller = shrunk(order, lambda _: None)
    assert len(faults_of(smaller)) == 1
    assert {violation.invariant for violation in simulate(smaller).violations} == {"right tokens"}
