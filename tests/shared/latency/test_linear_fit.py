"""The fit of Eq. 1: known coefficients come back, and odd samples do no harm."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.predictor.fit import mean_relative_error
from services.predictor.linear_fit import fit_linear
from services.predictor.window import Observation
from shared.latency.features import BatchFeatures
from shared.latency.linear import NUM_COEFFICIENTS, Coefficients, LinearLatencyModel
from tests.shared.latency.fitted import check_usable
from tests.shared.latency.shapes import DRIFTED, TRUTH, make_shape, predict, timed, varied_shapes


def test_known_coefficients_come_back_through_noise() -> None:
    rng = random.Random(1)
    fitted = fit_linear(timed(varied_shapes(rng, 600), rng, noise=0.03))
    assert fitted is not None
    for shape in varied_shapes(random.Random(2), 200):
        assert fitted.predict_ms(shape) == pytest.approx(predict(TRUTH, shape), rel=0.03)


def test_without_noise_the_coefficients_are_exact() -> None:
    rng = random.Random(3)
    fitted = fit_linear(timed(varied_shapes(rng, 100), rng, noise=0.0))
    assert fitted is not None
    assert fitted.coefficients() == pytest.approx(TRUTH, rel=1e-6)


def test_outliers_are_left_out() -> None:
    rng = random.Random(4)
    observations = timed(varied_shapes(rng, 400), rng, noise=0.02)
    spoiled = [
        Observation(shape, latency_ms * 6 if n % 15 == 0 else latency_ms)
        for n, (shape, latency_ms, _) in enumerate(observations)
    ]
    fitted = fit_linear(spoiled)
    assert fitted is not None
    assert mean_relative_error(fitted, observations) < 0.025


def test_rare_kinds_are_not_taken_for_outliers() -> None:
    rng = random.Random(5)
    decodes = [make_shape((), [500] * n_d) for n_d in range(1, 33)] * 30
    prefills = [make_shape([tokens]) for tokens in (16, 64, 128, 256, 512)]
    fitted = fit_linear(timed(decodes + prefills, rng, noise=0.01))
    assert fitted is not None
    for shape in prefills:
        assert fitted.predict_ms(shape) == pytest.approx(predict(TRUTH, shape), rel=0.1)


def test_collinear_shapes_are_predicted_as_measured() -> None:
    shapes = [make_shape((), [100] * n) for n in range(1, 20)] + [make_shape([64] * n) for n in range(1, 20)]
    observations = timed(shapes, random.Random(6), noise=0.0)
    fitted = fit_linear(observations)
    assert fitted is not None
    assert mean_relative_error(fitted, observations) < 0.01


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
    assert mean_relative_error(fitted, decodes) < 0.015
    assert fitted.coefficients()[1] == pytest.approx(TRUTH[1])
    assert fitted.coefficients()[3] == pytest.approx(TRUTH[3])
    assert fitted.coefficients()[5] == pytest.approx(TRUTH[5])
    assert fitted.coefficients()[7] == pytest.approx(TRUTH[7])


def test_fresh_samples_outweigh_stale_ones() -> None:
    rng = random.Random(10)
    fresh = timed(varied_shapes(rng, 200), rng, 0.01, DRIFTED)
    stale = [Observation(shape, latency_ms, 0.01) for shape, latency_ms, _ in timed(varied_shapes(rng, 200), rng, 0.01)]
    fitted, unweighted = (
        fit_linear(fresh + stale),
        fit_linear(fresh + [Observation(o.shape, o.latency_ms) for o in stale]),
    )
    assert fitted is not None and unweighted is not None
    assert mean_relative_error(fitted, fresh) < 0.02
    assert mean_relative_error(unweighted, fresh) > 0.05


batch_shapes = st.builds(BatchFeatures, *(st.integers(0, 5000) for _ in range(5))).filter(
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
    """Of few or of one kind without a prior none. With a prior it predicts some batch as well as that does."""
    fitted = fit_linear(observations, prior)
    if prior is None:
        if fitted is not None:
            check_usable(fitted, observations)
        return
    assert fitted is not None
    errors, before = (relative_errors(model, observations) for model in (fitted, LinearLatencyModel(*prior)))
    assert all(map(math.isfinite, errors))
    assert any(error <= other * (1 + 1e-6) + 1e-6 for error, other in zip(errors, before, strict=True))


def relative_errors(model: LinearLatencyModel, observations: list[Observation]) -> list[float]:
    return [abs(model.predict_ms(shape) / latency_ms - 1) for shape, latency_ms, _ in observations]
