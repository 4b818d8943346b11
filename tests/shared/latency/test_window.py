"""The predictor's sample window against its promises."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.predictor.window import STALE_WEIGHT, Observation, SampleWindow, stratum
from shared.latency.features import BatchFeatures
from tests.shared.latency.shapes import make_shape

shapes = st.builds(BatchFeatures, *(st.integers(0, 600) for _ in range(5)))
observations = st.builds(Observation, shapes, st.floats(0.1, 1e4), st.just(1.0))


@given(st.lists(observations, max_size=300), st.integers(8, 64))
def test_bounds_hold_and_each_stratum_keeps_its_newest(history: list[Observation], capacity: int) -> None:
    window = SampleWindow(capacity)
    accepted = [o for o in history if window_add_checked(window, o)]
    kept = window.observations()
    assert len(window) == len(kept)
    for key in {stratum(o.shape) for o in kept}:
        mine = [o[:2] for o in kept if stratum(o.shape) == key]
        all_of_it = [o[:2] for o in accepted if stratum(o.shape) == key]
        assert mine == all_of_it[len(all_of_it) - len(mine) :]


def window_add_checked(window: SampleWindow, observation: Observation) -> bool:
    accepted = window.add(observation.shape, observation.latency_ms)
    window.check_integrity()
    assert accepted == (observation.shape.prefill_requests + observation.shape.decode_requests > 0)
    return accepted


def test_a_flood_of_equal_decodes_leaves_the_rare_shapes_at_a_lower_weight() -> None:
    window = SampleWindow(256)
    rare = [make_shape([tokens]) for tokens in (16, 32, 64, 128, 256, 512)]
    for shape in rare:
        window.add(shape, 10.0)
    assert {o.weight for o in window.observations()} == {1.0}
    for number in range(20_000):
        window.add(make_shape((), [125] * 8), 5.0 + number)
    kept = window.observations()
    assert all(Observation(shape, 10.0, STALE_WEIGHT) in kept for shape in rare)
    assert Observation(make_shape((), [125] * 8), 5.0 + 19_999) in kept


@pytest.mark.parametrize("latency_ms", [0.0, -1.0, 1e-300, 1e300, math.nan, math.inf])
def test_a_senseless_latency_is_refused(latency_ms: float) -> None:
    window = SampleWindow(64)
    assert not window.add(make_shape([1]), latency_ms)
    assert len(window) == 0


def test_an_empty_batch_is_refused() -> None:
    assert not SampleWindow(64).add(make_shape(), 1.0)


def test_recent_ones_come_newest_first_whatever_their_stratum() -> None:
    window = SampleWindow(64)
    for number in range(1, 21):
        window.add(make_shape([1 << (number % 5)]), float(number))
    assert [o.latency_ms for o in window.recent(6)] == [20.0, 19.0, 18.0, 17.0, 16.0, 15.0]
    assert len(window.recent(100)) == 20
    for number in range(30):
        window.add(make_shape([1 << (number % 5)]), 50.0, is_live=False)
    assert window.recent(1)[0].latency_ms == 20.0, "a sweep is of the machine as it was then"


def test_numbers_go_on_where_all_is_forgotten() -> None:
    """So that a drift that began before is not taken for one that is yet to come."""
    window = SampleWindow(64)
    for number in range(1, 21):
        window.add(make_shape([1 << (number % 5)]), 1.0)
    began, _ = window.num_added, window.clear()
    window.check_integrity()
    assert len(window) == 0 and window.observations() == []
    window.add(make_shape([7]), 2.0)
    window.rescale(before=began, factor=10.0)
    assert window.observations() == [Observation(make_shape([7]), 2.0)]


def test_what_is_older_than_a_drift_is_rescaled() -> None:
    window = SampleWindow(64)
    for number in range(1, 21):
        window.add(make_shape([1 << (number % 5)]), float(number))
    window.rescale(before=15, factor=10.0)
    window.check_integrity()
    expected = [*(10.0 * number for number in range(1, 16)), *(float(number) for number in range(16, 21))]
    assert sorted(o.latency_ms for o in window.observations()) == sorted(expected)
