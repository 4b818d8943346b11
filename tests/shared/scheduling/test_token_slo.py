"""When tokens are due, by the rule that counts from the last one and by that which counts from the arrival."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.packing.deadlines.deadline_queue import remaining_ms
from shared.scheduling.packing.deadlines.token_slo import DEADLINE_RULES, ArrivalTokenSlo, FirstTokenSlo, TokenSlo
from shared.scheduling.packing.pace import Pace
from shared.scheduling.request import Request
from shared.scheduling.strategy import Strategy
from tests.shared.scheduling.factories import make_request

group_sizes = st.integers(1, 6)
gaps_ms = st.lists(st.integers(0, 2000).map(lambda eighths: eighths / 8), max_size=30)


def due(request: Request) -> tuple[float, int]:
    return request.deadline_ms, request.num_group_tokens_left


def test_a_first_token_has_the_ttft_and_each_later_one_the_tpot() -> None:
    slo, request = TokenSlo(400.0, 200.0), make_request("r")
    slo.arrive(request, 1000.0, 900.0)
    assert due(request) == (1400.0, 1)
    slo.advance(request, 1250.0)
    assert due(request) == (1450.0, 1)


def test_a_group_is_due_as_a_whole_and_what_is_missing_of_it_takes_steps() -> None:
    slo, request = TokenSlo(400.0, 50.0, group_tokens=4), make_request("r")
    slo.arrive(request, 0.0, 0.0)
    slo.advance(request, 100.0)
    assert due(request) == (300.0, 4)
    pace = Pace(now_ms=150.0, mean_step_ms=20.0)
    assert remaining_ms(request, pace) == 300.0 - 150.0 - 3 * 20.0
    for now_ms in (140.0, 180.0, 290.0):  # one late, made up for within the group
        slo.advance(request, now_ms)
        assert request.deadline_ms == 300.0
    slo.advance(request, 300.0)
    assert due(request) == (500.0, 4)


def test_from_the_arrival_what_is_saved_stays_and_what_is_late_is_made_up_for() -> None:
    slo, request = ArrivalTokenSlo(400.0, 50.0), make_request("r")
    slo.arrive(request, 1000.0, 900.0)
    assert due(request) == (1300.0, 1)
    for now_ms, expected_ms in ((1010.0, 1350.0), (1020.0, 1400.0), (2000.0, 1450.0)):
        slo.advance(request, now_ms)
        assert due(request) == (expected_ms, 1)


@pytest.mark.parametrize("first_ms", [1010.0, 1700.0])
def test_from_the_first_token_the_mean_time_between_tokens_is_bounded(first_ms: float) -> None:
    slo, request = FirstTokenSlo(400.0, 50.0), make_request("r")
    slo.arrive(request, 1000.0, 900.0)
    assert due(request) == (1300.0, 1)
    for number, now_ms in enumerate((first_ms, first_ms + 5.0, first_ms + 500.0), start=1):
        slo.advance(request, now_ms)
        assert due(request) == (first_ms + number * 50.0, 1)


def test_from_the_first_token_a_resumed_request_goes_on_as_from_its_arrival() -> None:
    slo, request = FirstTokenSlo(400.0, 50.0), make_request("r")
    request.num_resumed_tokens = 3
    slo.arrive(request, 1000.0, 900.0)
    assert due(request) == (1450.0, 1)
    slo.advance(request, 1010.0)
    assert due(request) == (1500.0, 1)


@given(group_sizes, gaps_ms, st.floats(0, 1000))
def test_token_i_is_due_ttft_and_i_tpot_after_the_arrival(group: int, gaps: list[float], waited_ms: float) -> None:
    """Echo section 5.1; in groups when the group's last token is."""
    slo, request, now_ms = ArrivalTokenSlo(400.0, 50.0, group), make_request("r"), 1000.0
    slo.arrive(request, now_ms, now_ms - waited_ms)
    for i in range(len(gaps) + 1):
        last = i if i == 0 else next(n for n in range(i, i + group) if n % group == 0)
        assert request.deadline_ms == pytest.approx(1000.0 - waited_ms + 400.0 + last * 50.0)
        assert request.num_group_tokens_left == last - i + 1
        if i < len(gaps):
            now_ms += gaps[i]
            slo.advance(request, now_ms)


@given(group_sizes, gaps_ms, st.floats(0, 1000))
def test_who_goes_on_elsewhere_is_due_as_if_it_had_stayed(group: int, gaps: list[float], waited_ms: float) -> None:
    slo, stays, now_ms = ArrivalTokenSlo(400.0, 50.0, group), make_request("stays"), 1000.0
    slo.arrive(stays, now_ms, now_ms - waited_ms)
    for gap_ms in gaps:
        now_ms += gap_ms
        slo.advance(stays, now_ms)
    moves = make_request("moves")
    moves.num_resumed_tokens = len(gaps)
    slo.arrive(moves, now_ms, 1000.0 - waited_ms)
    assert due(moves) == (pytest.approx(stays.deadline_ms), stays.num_group_tokens_left)


def test_from_the_last_token_who_goes_on_elsewhere_begins_anew() -> None:
    slo, request = TokenSlo(400.0, 50.0, 3), make_request("r")
    request.num_resumed_tokens, request.num_group_tokens_left = 7, 2
    slo.arrive(request, 5000.0, 1000.0)
    assert due(request) == (5400.0, 1)


@pytest.mark.parametrize("rule", DEADLINE_RULES.values())
@pytest.mark.parametrize("field", [each.name for each in fields(TokenSlo)])
def test_an_slo_is_positive(rule: type[TokenSlo], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        replace(rule(), **{field: 0})


@pytest.mark.parametrize(("name", "rule"), DEADLINE_RULES.items())
def test_a_strategy_names_its_rule(name: str, rule: type[TokenSlo]) -> None:
    strategy = Strategy.of("bros", deadline_rule=name, ttft_slo_ms=1000.0, tpot_slo_ms=50.0, slo_group_tokens=2)
    assert strategy.token_slo == rule(1000.0, 50.0, 2)
    assert type(strategy.token_slo) is rule


def test_bros_counts_from_the_last_token_and_an_unknown_rule_is_refused() -> None:
    assert type(Strategy.of("bros").token_slo) is TokenSlo
    with pytest.raises(ValueError, match="unknown deadline rule 'next-token'; known: last-token, arrival, first-token"):
        Strategy.of("bros", deadline_rule="next-token")
