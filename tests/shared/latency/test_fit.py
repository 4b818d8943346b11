"""The choice between the two kinds of model, calibration, and what is worth publishing."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import pytest

from services.predictor import regression
from services.predictor.boosted_fit import fit_boosted
from services.predictor.echo_fit import fit_echo
from services.predictor.fit import (
    Fit,
    bias,
    calibrated,
    fit_best,
    mean_relative_error,
    refit,
    surely_better,
)
from services.predictor.linear_fit import fit_bros, fit_linear
from services.predictor.window import Observation, noise_floor
from shared.latency.boosted import BoostedLatencyModel
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.protocol.profiling.latency_models import kind_of, model_record
from tests.shared.latency.shapes import (
    DRIFTED,
    TRUTH,
    make_shape,
    roofline,
    schedule_of,
    spec_of,
    timed,
    varied_shapes,
)

ROOFLINE = roofline("llama2-7b", "a100-40g")
NO_LIMIT_US = 1e6


def rooflined(rng: random.Random, count: int, noise: float) -> list[Observation]:
    """Varied shapes as a GPU would take them: weights are read once, so a batch's first tokens cost nothing more."""
    shapes = varied_shapes(rng, count)
    return [Observation(s, ROOFLINE.predict_ms(s) * rng.lognormvariate(0, noise)) for s in shapes]


def fit(observations: list[Observation]) -> Fit:
    fitted = fit_best(observations, prediction_limit_us=NO_LIMIT_US)
    assert fitted is not None
    return fitted


@pytest.mark.parametrize("fit_model", [fit_linear, fit_boosted, fit_bros, fit_echo])
def test_a_fit_that_does_not_converge_is_none(
    fit_model: Callable[[list[Observation]], LatencyModel | None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    observations = rooflined(random.Random(2), 200, noise=0.01)
    assert fit_model(observations) is not None
    monkeypatch.setattr(regression, "MAX_ITERATIONS", 1)
    assert fit_model(observations) is None
    assert {record.message for record in caplog.records} == {"fit did not converge"}


def test_what_is_linear_stays_linear() -> None:
    fitted = fit(timed(varied_shapes(random.Random(1), 600), random.Random(1), noise=0.03))
    assert isinstance(fitted.model, LinearLatencyModel)
    assert fitted.num_samples == 600
    assert [candidate.kind for candidate in fitted.candidates] == ["linear", "boosted"]
    assert fitted.mape == fitted.candidates[0].mape
    assert 0.01 < fitted.mape < 0.035  # 3% normal noise has a mean absolute error of 2.4%
    assert fitted.linear == fitted.model.coefficients()


def test_what_bends_is_boosted_and_the_error_is_that_of_the_noise() -> None:
    fitted = fit(rooflined(random.Random(2), 1500, noise=0.01))
    assert isinstance(fitted.model, BoostedLatencyModel)
    linear, boosted = fitted.candidates
    assert fitted.mape == boosted.mape < linear.mape - 0.005
    assert boosted.mape < 0.012  # 1% of noise has a mean absolute error of 0.8%
    unseen = rooflined(random.Random(3), 500, noise=0.0)
    assert mean_relative_error(fitted.model, unseen) < 0.006


def test_a_model_too_slow_to_plan_with_is_not_chosen() -> None:
    fitted = fit_best(rooflined(random.Random(2), 1500, noise=0.01), prediction_limit_us=1e-3)
    assert fitted is not None and isinstance(fitted.model, LinearLatencyModel)
    assert fitted.mape == fitted.candidates[0].mape


def test_a_difference_that_chance_can_make_is_none() -> None:
    """10% of bias beside 10% of noise shows in thousands of samples, 2% not in twenty."""
    rng = random.Random(3)
    truth, biased = LinearLatencyModel(*TRUTH), LinearLatencyModel(*TRUTH).scaled(1.1)
    few, many = (timed(varied_shapes(rng, count), rng, noise=0.1) for count in (20, 5000))
    assert surely_better(truth, biased, many)
    assert not surely_better(biased, truth, many)
    assert not surely_better(truth, LinearLatencyModel(*TRUTH).scaled(1.02), few)
    assert not surely_better(truth, truth, many)


def test_few_shapes_are_fitted_with_a_line() -> None:
    fitted = fit(rooflined(random.Random(4), 20, noise=0.0))
    assert [candidate.kind for candidate in fitted.candidates] == ["linear"]


@pytest.mark.parametrize("repeats", [2, 3, 10])
def test_the_noise_floor_is_that_of_the_noise_however_few_repetitions(repeats: int) -> None:
    rng = random.Random(5)
    shapes = [shape for shape in varied_shapes(rng, 600) for _ in range(repeats)]
    floor = noise_floor(timed(shapes, rng, noise=0.02))
    assert floor == pytest.approx(0.02 * 0.798, rel=0.1)  # of a normal distribution: the root of 2 / pi


def test_a_machine_that_became_slower_is_not_noisy() -> None:
    rng = random.Random(6)
    shapes = [make_shape((), [100 * n] * n) for n in range(1, 20)] * 20
    before, after = timed(shapes, rng, noise=0.01), timed(shapes, rng, noise=0.01, truth=DRIFTED)
    floor = noise_floor(chain(before, after))
    assert floor is not None and floor < 0.025
    assert noise_floor(timed([make_shape([n]) for n in range(1, 50)], rng, 0.01)) is None


def after(published: Fit, observations: list[Observation], recent: list[Observation], **changes: bool) -> Fit | None:
    """What is published in its place."""
    return refit(observations, recent, published.model, published.linear, NO_LIMIT_US, "auto", None, **changes)


def test_a_model_is_published_when_it_predicts_better() -> None:
    rng = random.Random(9)
    shapes = varied_shapes(rng, 300)
    published = replace(fit(timed(shapes, rng, 0.0)), model=LinearLatencyModel(*TRUTH))
    same, drifted = timed(shapes, rng, 0.02), timed(shapes, rng, 0.02, DRIFTED)
    assert after(published, same, []) is None
    again, changed = after(published, same, [], has_drifted=True), after(published, drifted, [])
    assert again is not None and again.model == published.model
    assert changed is not None and mean_relative_error(changed.model, timed(shapes, rng, 0.0, DRIFTED)) < 0.01


@pytest.mark.parametrize("seed", range(3))
def test_few_samples_of_a_machine_that_is_slower_leave_what_is_known_about_others(seed: int) -> None:
    """As after a restart: 24 steps that are much alike, 6% longer than predicted."""
    published = fit(rooflined(random.Random(2), 1500, noise=0.01))
    rng, steps = random.Random(seed), schedule_of("llama2-7b", 2)
    slower = [Observation(s, 1.06 * ROOFLINE.predict_ms(s) * rng.lognormvariate(0, 0.02)) for s in steps[:24]]
    fitted = refit(slower, slower, published.model, published.linear, NO_LIMIT_US, "auto", spec_of("llama2-7b"))
    assert fitted is not None and fitted.linear[0] == pytest.approx(1.06 * published.linear[0], rel=0.02)
    others = [Observation(s, 1.06 * ROOFLINE.predict_ms(s)) for s in varied_shapes(rng, 200)]
    assert mean_relative_error(fitted.model, others) < 0.03
    assert fitted.candidates[-1].kind == "boosted" and fitted.candidates[-1].mape == fitted.mape


@pytest.mark.parametrize("wanted", ["bros", "echo"])
def test_what_is_asked_for_replaces_a_better_model_of_another_kind(wanted: str) -> None:
    """And is replaced where it is asked for no longer, but not where too little is known to fit it again."""

    def kind_after(published: Fit, wanted: str, of: list[Observation]) -> str | None:
        prior = published.linear
        fitted = refit(of, [], published.model, prior, NO_LIMIT_US, wanted, None)
        return None if fitted is None else kind_of(model_record(fitted.model))

    observations = rooflined(random.Random(2), 600, noise=0.01)
    best, asked_for = fit(observations), fit_best(observations, wanted=wanted)
    assert asked_for is not None and asked_for.mape > best.mape
    assert kind_after(best, wanted, observations) == wanted
    assert kind_after(asked_for, "auto", observations) == "boosted"
    assert kind_after(best, "auto", observations) is None
    assert kind_after(asked_for, wanted, observations) is None
    decodes = [
        Observation(shape, asked_for.model.predict_ms(shape))
        for shape, _, _ in observations
        if not shape.prefill_requests
    ]
    assert kind_after(asked_for, wanted, decodes) is None


@pytest.mark.parametrize("make", [rooflined, lambda rng, n, noise: timed(varied_shapes(rng, n), rng, noise)])
def test_a_fit_is_calibrated_to_what_runs_now(make) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(5)
    fitted = fit(make(rng, 600, 0.02))
    now = [Observation(shape, latency * 1.12) for shape, latency, _ in make(rng, 300, 0.02)]
    assert bias(fitted.model, now) == pytest.approx(1.12, abs=0.02)
    scaled = calibrated(fitted, now)
    assert bias(scaled.model, now) == pytest.approx(1.0)
    assert scaled.linear[0] == pytest.approx(fitted.linear[0] * bias(fitted.model, now))
    followed = after(fitted, make(rng, 600, 0.02), now)
    assert followed is not None and bias(followed.model, now) == pytest.approx(1.0)


def test_calibration_has_limits_and_needs_samples() -> None:
    rng = random.Random(6)
    observations = timed(varied_shapes(rng, 100), rng, noise=0.0)
    fitted = fit(observations)
    assert calibrated(fitted, []) == fitted
    stalled = [Observation(shape, latency * 50) for shape, latency, _ in observations]
    assert bias(calibrated(fitted, stalled).model, observations) == pytest.approx(0.5, abs=0.01)


def test_the_first_steps_after_a_start_move_the_model_by_what_they_tell() -> None:
    """One that was 1.8 times as long as predicted, the first after a sweep, had all others predicted so too."""
    rng = random.Random(11)
    swept = timed(varied_shapes(rng, 400), rng, 0.02)
    published = fit(swept)
    shape = make_shape(contexts=(300,) * 8)
    usual_ms = published.model.predict_ms(shape)
    recent = [Observation(shape, 1.8 * usual_ms)]
    followed = after(published, [*swept, *recent], recent)
    assert followed is not None and followed.model.predict_ms(shape) == pytest.approx(usual_ms, rel=0.04)
    now = [Observation(shape, 1.8 * usual_ms)] * 24
    followed = after(published, [*swept, *now], now)
    assert followed is not None and followed.model.predict_ms(shape) == pytest.approx(1.8 * usual_ms, rel=0.02)


def test_a_step_that_stalls_leaves_the_model_as_it_is() -> None:
    """One of a hundred times its length had the other 127 predicted at 1.7 times theirs."""
    rng = random.Random(11)
    observations = timed(varied_shapes(rng, 400), rng, 0.02)
    published = fit(observations)
    shape = make_shape(contexts=(300,) * 8)
    usual_ms = published.model.predict_ms(shape)
    recent = [Observation(shape, usual_ms * rng.lognormvariate(0, 0.01)) for _ in range(128)]
    recent[64] = Observation(shape, 100 * usual_ms)
    assert bias(published.model, recent) == pytest.approx(1.0, abs=0.02)
    assert calibrated(published, recent).model.predict_ms(shape) == pytest.approx(usual_ms, rel=0.02)
    assert after(published, observations, recent) is None


def test_the_same_samples_give_the_same_model() -> None:
    observations = rooflined(random.Random(7), 800, noise=0.01)
    first, again = fit(observations), fit(observations)
    assert replace(first, candidates=()) == replace(again, candidates=())
    assert [candidate.mape for candidate in first.candidates] == [candidate.mape for candidate in again.candidates]


def test_held_out_samples_decide_and_not_those_fitted() -> None:
    """The error that is reported is about what fresh samples of the same kind show."""
    fitted = fit(rooflined(random.Random(8), 1500, noise=0.02))
    fresh = rooflined(random.Random(9), 1500, noise=0.02)
    assert mean_relative_error(fitted.model, fresh) == pytest.approx(fitted.mape, abs=0.004)
