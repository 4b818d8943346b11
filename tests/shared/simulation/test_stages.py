"""Steps in a pipeline of stages against a table of when each stage is left by each step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.simulation.stages import Stages

STEPS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), min_size=1, max_size=20)


@given(st.integers(1, 4), STEPS)
def test_a_step_enters_each_stage_when_it_and_the_one_before_have_left_what_is_before(
    depth: int, steps: list[tuple[int, int]]
) -> None:
    """``steps``: how long after the one before each starts, and how long it takes."""
    stages, start_s = Stages(depth), 0.0
    before_s = [0.0] * depth
    for delay_s, duration_s in steps:
        start_s += delay_s
        left_s: list[float] = []
        for stage in range(depth):
            enters_s = max(left_s[-1] if left_s else start_s, before_s[stage])
            left_s.append(enters_s + duration_s / depth)
        assert stages.leave(start_s, duration_s) == pytest.approx(left_s[-1])
        before_s = left_s


def test_a_full_pipeline_ends_a_step_as_often_as_a_stage_takes() -> None:
    stages = Stages(4)
    assert [stages.leave(10.0, 2.0) for _ in range(4)] == [12.0, 12.5, 13.0, 13.5]
    assert stages.leave(100.0, 2.0) == 102.0
