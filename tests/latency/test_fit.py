"""The fit of Eq. 1: known coefficients come back, and odd samples do no harm."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.predictor.fit import bias, calibrated, fit_linear, is_material, mean_relative_error
from services.predictor.window import Observation
from shared.latency.features import BatchFeatures
from shared.latency.linear import NUM_COEFFICIENTS, Coefficients, LinearLatencyModel
from shared.protocol.messages import BatchShape
from tests.latency.shapes import make_shape

TRUTH: Coefficients = (25.0, 0.8, 2e-3, 3e-4, 2e-8, 1.5, 1.2, 2e-4)
DRIFTED: Coefficients = (40.0, 1.3, 2e-3, 3e-4, 2e-8, 1.5, 1.2, 2e-4)


def predict(coefficients: Coefficients, shape: BatchShape) -> float:
    return LinearLatencyModel(*coefficients).predict_ms(shape.features())


def varied_shapes(rng: random.Random, count: int) -> list[BatchShape]:
    shapes = []
    for number in range(count):
        n_p = 0 if number % 3 == 0 else rng.randint(1, 4)
        n_d = 0 if number % 3 == 1 else rng.randint(1, 64)
        chunks = [(rng.choice((8, 32, 128, 512)), rng.choice((0, 0, 64, 1024))) for _ in range(n_p)]
        shapes.append(make_shape(chunks, [rng.choice((16, 128, 512, 2000)) for _ in range(n_d)]))
    return shapes


def timed(shapes: list[BatchShape], rng: random.Random, noise: float, truth: Coefficients = TRUTH) -> list[Observation]:
    return [Observation(shape, predict(truth, shape) * rng.gauss(1.0, noise)) for shape in shapes]


def test_known_coefficients_come_back_through_noise() -> None:
    rng = random.Random(1)
    fitted = fit_linear(timed(varied_shapes(rng, 600), rng, noise=0.03))
    assert fitted is not None
    assert fitted.num_samples == 600
    assert 0.01 < fitted.mape < 0.035  # 3% normal noise has a mean absolute error of 2.4%
    for shape in varied_shapes(random.Random(2), 200):
        assert predict(fitted.coefficients, shape) == pytest.approx(predict(TRUTH, shape), rel=0.03)


def test_without_noise_the_coefficients_are_exact() -> None:
    rng = random.Random(3)
    fitted = fit_linear(timed(varied_shapes(rng, 100), rng, noise=0.0))
    assert fitted is not None
    assert fitted.coefficients == pytest.approx(TRUTH, rel=1e-6)
    assert fitted.mape < 1e-9


def test_outliers_are_left_out() -> None:
    rng = random.Random(4)
    observations = timed(varied_shapes(rng, 400), rng, noise=0.02)
    spoiled = [
        Observation(shape, latency_ms * 6 if n % 15 == 0 else latency_ms)
        for n, (shape, latency_ms, _) in enumerate(observations)
    ]
    fitted = fit_linear(spoiled)
    assert fitted is not None
    assert mean_relative_error(fitted.coefficients, observations) < 0.025


def test_rare_kinds_are_not_taken_for_outliers() -> None:
    rng = random.Random(5)
    decodes = [make_shape((), [500] * n_d) for n_d in range(1, 33)] * 30
    prefills = [make_shape([tokens]) for tokens in (16, 64, 128, 256, 512)]
    fitted = fit_linear(timed(decodes + prefills, rng, noise=0.01))
    assert fitted is not None
    for shape in prefills:
        assert predict(fitted.coefficients, shape) == pytest.approx(predict(TRUTH, shape), rel=0.1)


def test_collinear_shapes_are_predicted_as_measured() -> None:
    shapes = [make_shape((), [100] * n) for n in range(1, 20)] + [make_shape([64] * n) for n in range(1, 20)]
    observations = timed(shapes, random.Random(6), noise=0.0)
    fitted = fit_linear(observations)
    assert fitted is not None
    assert mean_relative_error(fitted.coefficients, observations) < 0.01


def test_one_kind_alone_gives_no_model_without_a_prior() -> None:
    rng = random.Random(7)
    decodes = timed([make_shape((), [37 * n] * n) for n in range(1, 40)], rng, noise=0.01)
    assert fit_linear(decodes) is None
    assert fit_linear(decodes[:1] * 50) is None


def test_a_prior_keeps_what_the_samples_do_not_show() -> None:
    rng = random.Random(8)
    decodes = timed([make_shape((), [37 * n] * n) for n in range(1, 60)] * 5, rng, 0.01, DRIFTED)
    fitted = fit_linear(decodes, prior=TRUTH)
    assert fitted is not None
    assert mean_relative_error(fitted.coefficients, decodes) < 0.015
    assert fitted.coefficients[1] == pytest.approx(TRUTH[1])
    assert fitted.coefficients[3] == pytest.approx(TRUTH[3])
    assert fitted.coefficients[5] == pytest.approx(TRUTH[5])
    assert fitted.coefficients[7] == pytest.approx(TRUTH[7])


def test_fresh_samples_outweigh_stale_ones() -> None:
    rng = random.Random(10)
    fresh = timed(varied_shapes(rng, 200), rng, 0.01, DRIFTED)
    stale = [Observation(shape, latency_ms, 0.01) for shape, latency_ms, _ in timed(varied_shapes(rng, 200), rng, 0.01)]
    fitted, unweighted = (
        fit_linear(fresh + stale),
        fit_linear(fresh + [Observation(o.shape, o.latency_ms) for o in stale]),
    )
    assert fitted is not None and unweighted is not None
    assert mean_relative_error(fitted.coefficients, fresh) < 0.02
    assert mean_relative_error(unweighted.coefficients, fresh) > 0.05


def test_a_model_is_material_when_it_predicts_better() -> None:
    rng = random.Random(9)
    shapes = varied_shapes(rng, 300)
    same, drifted = timed(shapes, rng, 0.02), timed(shapes, rng, 0.02, DRIFTED)
    unchanged, changed = fit_linear(same, prior=TRUTH), fit_linear(drifted, prior=TRUTH)
    assert unchanged is not None and changed is not None
    assert not is_material(unchanged, TRUTH, same)
    assert is_material(changed, TRUTH, drifted)


batch_shapes = st.builds(BatchShape, *(st.integers(0, 5000) for _ in range(5))).filter(
    lambda shape: shape.prefill_requests + shape.decode_requests > 0
)
priors = st.none() | st.tuples(*(st.floats(0, 100) for _ in range(NUM_COEFFICIENTS)))


@settings(max_examples=60)
@given(
    st.lists(
        st.builds(Observation, batch_shapes, st.floats(1e-3, 1e5), st.sampled_from((0.1, 1.0))), min_size=1, max_size=40
    ),
    priors,
)
def test_any_samples_give_a_usable_model_or_none(observations: list[Observation], prior: Coefficients | None) -> None:
    fitted = fit_linear(observations, prior)
    if fitted is None:
        return
    assert fitted.mape >= 0
    model = LinearLatencyModel(*fitted.coefficients)  # refuses what is negative or not finite
    assert model.predict_ms(BatchFeatures(10, 1, 10, 1)) >= 0


def test_a_fit_is_calibrated_to_what_runs_now() -> None:
    rng = random.Random(5)
    shapes = varied_shapes(rng, 400)
    fitted = fit_linear(timed(shapes, rng, noise=0.02))
    assert fitted is not None
    now = [Observation(shape, latency * 1.12) for shape, latency, _ in timed(shapes[:100], rng, noise=0.02)]
    assert bias(fitted.coefficients, now) == pytest.approx(1.12, abs=0.02)
    assert bias(calibrated(fitted, now).coefficients, now) == pytest.approx(1.0)
    assert is_material(fitted, fitted.coefficients, timed(shapes, rng, noise=0.02), now)


def test_calibration_has_limits_and_needs_samples() -> None:
    rng = random.Random(6)
    observations = timed(varied_shapes(rng, 100), rng, noise=0.0)
    fitted = fit_linear(observations)
    assert fitted is not None
    assert calibrated(fitted, []) == fitted
    stalled = [Observation(shape, latency * 50) for shape, latency, _ in observations]
    assert bias(calibrated(fitted, stalled).coefficients, observations) == pytest.approx(0.5, abs=0.01)
