"""Plans that come for steps that nobody can plan yet."""

from msgspec.structs import replace

from shared.protocol.steps import StepPlan
from shared.replica.replica import Replica
from shared.replica.step_planner import StepPlanner
from tests.shared.replica.factories import make_info


def test_plans_of_far_steps_are_not_kept() -> None:
    """They would stay for ever."""
    info = make_info()
    planner = StepPlanner(Replica(info.limits(), info.spec, None), info.executor_id, info.epoch, depth=2)
    plan = StepPlan(info.executor_id, info.epoch, 0, [], [], [], 0.0)
    for step in range(2, 10**6, 10**5):
        planner.take_plan(replace(plan, step=step))
    assert list(planner._plans) == [2]
