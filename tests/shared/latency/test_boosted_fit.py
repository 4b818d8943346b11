"""The boosted fit: as good as noise lets it be on batches of a real schedule, smooth, and sensible beyond them."""

import random
import sys
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.lab.samples import timed, window_of
from services.predictor import boosted_fit
from services.predictor.boosted_fit import fit_boosted
from services.predictor.fit import fit_best, mean_relative_error
from services.predictor.window import Observation
from shared.latency.boosted import BoostedLatencyModel
from shared.latency.features import BatchFeatures
from shared.latency.roofline import RooflineLatencyModel
from tests.shared.latency.fitted import check_usable
from tests.shared.latency.shapes import MACHINES, make_shape, roofline, schedule_of, varied_shapes

MEAN_DEVIATION = 0.798  # of a normal distribution, in sigmas


def truth_of(model: str) -> RooflineLatencyModel:
    return roofline(model, MACHINES[model])


@cache
def windowed(model: str, noise: float) -> list[Observation]:
    return window_of(timed(schedule_of(model, seed=1), truth_of(model), noise, seed=2)).observations()


@cache
def boosted(model: str, noise: float) -> BoostedLatencyModel:
    fitted = fit_boosted(windowed(model, noise))
    assert fitted is not None
    return fitted


@pytest.mark.parametrize("model", MACHINES)
def test_on_a_real_schedule_the_error_is_that_of_the_noise(model: str) -> None:
    """HyGen reports 1.07 to 1.78%."""
    fitted = fit_best(windowed(model, 0.01))
    assert fitted is not None
    assert fitted.mape < 0.015
    assert fitted.candidates[1].mape < 0.01 * MEAN_DEVIATION + 0.002
    unseen = schedule_of(model, seed=3)
    without_noise = window_of(timed(unseen, truth_of(model), noise=0.0, seed=4)).observations()
    assert mean_relative_error(boosted(model, 0.01), without_noise) < 0.005


def test_outliers_are_left_out() -> None:
    spoiled = [
        Observation(shape, latency_ms * 6 if n % 15 == 0 else latency_ms)
        for n, (shape, latency_ms, _) in enumerate(windowed("llama2-7b", 0.01))
    ]
    fitted = fit_boosted(spoiled)
    assert fitted is not None
    assert mean_relative_error(fitted, windowed("llama2-7b", 0.0)) < 0.02


@pytest.mark.parametrize("num_decodes", [0, 1, 5, 20, 40])
@pytest.mark.parametrize("context", [100, 1000, 3000])
def test_one_more_decode_always_costs_what_it_takes(num_decodes: int, context: int) -> None:
    """A staircase would say nothing for most and much for some."""
    model, truth = boosted("llama2-7b", 0.01), truth_of("llama2-7b")
    batch = make_shape([300], [800] * num_decodes)
    cost_ms, expected_ms = model.decode_cost_ms(batch, context), truth.decode_cost_ms(batch, context)
    assert cost_ms == pytest.approx(expected_ms, rel=0.2, abs=0.1)


def test_a_chunk_grows_with_the_budget_as_it_should() -> None:
    model, truth = boosted("llama2-7b", 0.01), truth_of("llama2-7b")
    batch = make_shape((), [1000] * 20)
    for budget_ms in (5.0, 10.0, 15.0, 20.0):
        expected = truth.max_prefill_tokens(batch, 500, budget_ms, 512)
        assert model.max_prefill_tokens(batch, 500, budget_ms, 512) == pytest.approx(expected, abs=16)


@pytest.mark.parametrize("batch", [make_shape([1500]), make_shape((), [3000] * 60), make_shape([700] * 2, [2000] * 60)])
def test_beyond_what_was_seen_the_trend_goes_on(batch: BatchFeatures) -> None:
    """Nothing of the kind ran: chunks of at most 512 tokens, and half as much KV."""
    predicted = boosted("llama2-7b", 0.01).predict_ms(batch)
    assert predicted == pytest.approx(truth_of("llama2-7b").predict_ms(batch), rel=0.15)


def test_without_the_library_the_fit_is_linear(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    boosted_fit._lightgbm.cache_clear()
    try:
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "lightgbm", None)
            fitted = fit_best(windowed("llama2-7b", 0.01))
    finally:
        boosted_fit._lightgbm.cache_clear()
    assert fitted is not None and [candidate.kind for candidate in fitted.candidates] == ["linear"]
    assert caplog.messages.count("no boosted models: LightGBM cannot be loaded") == 1


@settings(max_examples=25)
@given(
    st.lists(
        st.builds(
            Observation,
            st.builds(
                make_shape,
                st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 5000)), max_size=3),
                st.lists(st.integers(1, 5000), min_size=1, max_size=30),
            ),
            st.floats(1e-3, 1e5),
            st.sampled_from((0.1, 1.0)),
        ),
        min_size=30,
        max_size=80,
    )
)
def test_any_samples_give_a_usable_model_or_none(observations: list[Observation]) -> None:
    fitted = fit_boosted(observations)
    if fitted is not None:
        check_usable(fitted, observations)


def test_one_kind_alone_or_few_shapes_give_none() -> None:
    rng, truth = random.Random(1), truth_of("llama2-7b")
    shapes = varied_shapes(rng, 300)

    def timed(wanted: Callable[[BatchFeatures], bool]) -> list[Observation]:
        return [Observation(s, truth.predict_ms(s)) for s in shapes if wanted(s)]

    assert fit_boosted(timed(lambda s: s.prefill_requests == 0)) is None
    assert fit_boosted(timed(lambda s: s.decode_requests == 0)) is None
    assert fit_boosted(timed(lambda _: True)[:20] * 10) is None
    assert fit_boosted(timed(lambda _: True)) is not None
