"""What a policy makes of its budget: beside online work and without, for decodes, and where nothing fits it."""

import math

import pytest

from shared.latency.model import cheapest_step_ms
from shared.scheduling.placement.role import Role
from shared.scheduling.policy import Policy
from tests.shared.scheduling.factories import MODEL

CHEAPEST_MS = cheapest_step_ms(MODEL)


def test_a_step_beside_online_work_keeps_the_budget_and_one_without_may_take_longer() -> None:
    policy = Policy(5 * CHEAPEST_MS, idle_budget_ms=9 * CHEAPEST_MS)
    assert [policy.budget_ms(has_online, MODEL) for has_online in (True, False)] == [5 * CHEAPEST_MS, 9 * CHEAPEST_MS]
    longer = Policy(5 * CHEAPEST_MS, idle_budget_ms=CHEAPEST_MS)
    assert longer.budget_ms(False, MODEL) == 5 * CHEAPEST_MS, "never less than beside online work"
    assert [Policy().budget_ms(has_online, MODEL) for has_online in (True, False)] == [math.inf, math.inf]


@pytest.mark.parametrize("budget_ms", [0.0, 0.5 * CHEAPEST_MS])
def test_some_offline_request_begins_on_an_idle_executor_whatever_the_budget(budget_ms: float) -> None:
    """And as much again fits beside it."""
    assert Policy(budget_ms).budget_ms(True, MODEL) == budget_ms
    assert 2 * CHEAPEST_MS <= Policy(budget_ms).budget_ms(False, MODEL) < math.inf


def test_a_budget_in_which_no_request_begins_is_told_but_for_one_of_nothing() -> None:
    assert Policy(0.9 * CHEAPEST_MS).starves_ms(MODEL) == Policy(1e-3).starves_ms(MODEL) == CHEAPEST_MS
    for policy in (
        Policy(CHEAPEST_MS),
        Policy(0.0),
        Policy(),
        Policy(0.9 * CHEAPEST_MS, offline_enabled=False),
    ):
        assert policy.starves_ms(MODEL) is None


def test_decodes_are_held_to_the_budget_where_there_is_one() -> None:
    assert [Policy(budget_ms).decodes_limit_ms for budget_ms in (30.0, 0.0, math.inf)] == [30.0, math.inf, math.inf]


@pytest.mark.parametrize("role", Role)
def test_online_decodes_are_left_out_where_they_are_to_be_and_time_between_tokens_is_kept(role: Role) -> None:
    assert Policy(30.0, role=role).online_limit_ms == math.inf
    shedding = Policy(30.0, role=role, sheds_online=True)
    assert shedding.online_limit_ms == (math.inf if role is Role.RELAXED else 30.0)
