"""The predictor's sample window against its promises."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.predictor.window import Observation, SampleWindow, stratum
from shared.protocol.messages import BatchShape

shapes = st.builds(BatchShape, *(st.integers(0, 600) for _ in range(4)))
observations = st.builds(Observation, shapes, st.floats(0.1, 1e4))


@given(st.lists(observations, max_size=300), st.integers(8, 64))
def test_bounds_hold_and_each_stratum_keeps_its_newest(history: list[Observation], capacity: int) -> None:
    window = SampleWindow(capacity)
    for observation in history:
        window.add(observation)
        window.check_integrity()
    kept = window.observations()
    assert len(window) == len(kept)
    for key in {stratum(shape) for shape, _ in kept}:
        mine = [o for o in kept if stratum(o.shape) == key]
        all_of_it = [o for o in history if stratum(o.shape) == key and _says_something(o)]
        assert mine == all_of_it[len(all_of_it) - len(mine) :]


def _says_something(observation: Observation) -> bool:
    return observation.shape.prefill_requests > 0 or observation.shape.decode_requests > 0


def test_a_flood_of_equal_decodes_leaves_the_rare_shapes() -> None:
    window = SampleWindow(256)
    rare = [Observation(BatchShape(tokens, 1, 0, 0), 10.0) for tokens in (16, 32, 64, 128, 256, 512)]
    for observation in rare:
        window.add(observation)
    for number in range(20_000):
        window.add(Observation(BatchShape(0, 0, 1000, 8), 5.0 + number))
    kept = window.observations()
    assert set(rare) < set(kept)
    assert Observation(BatchShape(0, 0, 1000, 8), 5.0 + 19_999) in kept


@pytest.mark.parametrize("latency_ms", [0.0, -1.0, math.nan, math.inf])
def test_a_senseless_latency_is_refused(latency_ms: float) -> None:
    window = SampleWindow(64)
    assert not window.add(Observation(BatchShape(1, 1, 0, 0), latency_ms))
    assert len(window) == 0


def test_an_empty_batch_is_refused() -> None:
    assert not SampleWindow(64).add(Observation(BatchShape(0, 0, 0, 0), 1.0))
