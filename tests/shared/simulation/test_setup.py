"""What is fixed about simulated executors, as schedulers are told of it."""

import math
from dataclasses import replace

import pytest
from msgspec import structs

from shared.scheduling.placement.role import Role
from shared.scheduling.strategy import Strategy
from shared.simulation.setup import ExecutorSetup
from tests.shared.simulation.test_system import make_setup


def with_budget(**knobs: float | str) -> ExecutorSetup:
    return replace(make_setup(), strategy=Strategy.of("hygen", **knobs))


@pytest.mark.parametrize(("budget_ms", "serves_offline"), [(0.0, False), (30.0, True)])
def test_a_fixed_budget_of_nothing_serves_no_offline_work(budget_ms: float, serves_offline: bool) -> None:
    policy = with_budget(latency_budget="fixed", budget_ms=budget_ms).policy(Role.STRICT)
    assert (policy.latency_budget_ms, policy.offline_enabled, policy.tolerance) == (budget_ms, serves_offline, None)
    assert policy.role is Role.STRICT


def test_without_a_fixed_budget_offline_work_has_the_tolerance() -> None:
    policy = with_budget(tolerance=0.25).policy()
    assert (policy.latency_budget_ms, policy.offline_enabled, policy.tolerance) == (0.0, True, 0.25)
    assert policy.role is Role.MIXED
    setup = with_budget(tolerance=0.25)
    stoppable = replace(setup, spec=structs.replace(setup.spec, is_interruptible=True))
    assert stoppable.policy().idle_budget_ms == math.inf > policy.idle_budget_ms, "what can be stopped needs no bound"
    assert with_budget(idle_budget_ms=70.0).policy().idle_budget_ms == 70.0


def test_an_executor_is_registered_as_it_was_set_up() -> None:
    setup = replace(make_setup(), role=Role.RELAXED)
    info = setup.info("seven")
    assert (info.executor_id, info.spec, info.strategy, info.role) == (
        "seven",
        setup.spec,
        setup.strategy,
        Role.RELAXED,
    )
    assert (info.max_num_batched_tokens, info.max_num_seqs) == (64, 16)
