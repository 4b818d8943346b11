"""Fit the kinds of model to the same samples, and keep the one that serves better or was asked for."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from services.predictor.boosted_fit import fit_boosted
from services.predictor.echo_fit import fit_echo
from services.predictor.linear_fit import fit_bros, fit_linear
from services.predictor.regression import Array
from services.predictor.roofline_fit import fit_roofline
from services.predictor.window import Observation, noise_floor
from shared.latency.linear import Coefficients, LinearLatencyModel
from shared.protocol.executors import EngineSpec
from shared.protocol.profiling.latency_models import Candidate, FittedModel, kind_of, model_record

M = TypeVar("M", bound=FittedModel)
FitOf = Callable[[Sequence[Observation]], FittedModel | None]

AUTO = "auto"
FITS_ON_REQUEST: Mapping[str, FitOf] = {
    "bros": fit_bros,
    "echo": fit_echo,
}
HOLD_OUT_EVERY = 5
BETTER_MAPE = 0.005
SURE_SIGMAS = 2.0
MAX_BIAS = 0.03  # of a published model's total over recent samples; their noise alone makes about 1%
ENOUGH_RECENT = 24  # samples that tell how the machine is now; fewer tell it as far as they are of these
CALIBRATION_LIMITS = (0.5, 2.0)  # of a sample's predicted time; beyond it is not drift: something else is wrong
DIFFERENT_PREDICTION = 0.05
DIFFERENT_QUANTILE = 0.9
TIMED_BATCHES = 256
TIMED_ROUNDS = 5
TIMED_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Fit:
    """The model of choice, and how well it predicts samples that it never saw."""

    model: FittedModel
    trained: FittedModel  # without the held-out samples
    num_samples: int
    mape: float  # mean absolute percentage error on every fifth sample, fitted without those; 0 to 1
    candidates: tuple[Candidate, ...]
    noise_floor: float | None  # of equal batches, which no model can be better than; None where none was repeated
    linear: Coefficients  # of the linear candidate, whichever was chosen


class _Fitted(NamedTuple, Generic[M]):
    """``trained``: without the held-out samples, by which the candidate is judged."""

    model: M
    trained: M
    candidate: Candidate


def refit(
    observations: Sequence[Observation],
    recent: Sequence[Observation],
    published: FittedModel | None,
    prior: Coefficients | None,
    prediction_limit_us: float,
    wanted: str,
    spec: EngineSpec | None,
    has_drifted: bool = False,
) -> Fit | None:
    """A model to publish in the place of ``published`` (None: of any); None where there is none, or none that is asked
    for or worth it. Takes seconds. What is known stays, and follows the machine by a factor, unless ``observations``
    tell for sure that a new fit is better: they may be few and alike, as after a restart. ``has_drifted``: what is
    published is not to stay as it is. The other arguments: see ``fit_best`` and ``calibrated``."""
    fitted = fit_best(observations, prior, prediction_limit_us, wanted, spec)
    if fitted is None:
        return None
    fitted = calibrated(fitted, recent)
    if published is None or is_asked_for(fitted, published, wanted):
        return fitted
    factor = bias(published, recent)
    known = _rescaled(published, factor, fitted, prior, observations)
    if is_better(fitted, known, observations):
        return fitted
    return known if has_drifted or abs(factor - 1.0) > MAX_BIAS else None


def fit_best(
    observations: Sequence[Observation],
    prior: Coefficients | None = None,
    prediction_limit_us: float = 5.0,
    wanted: str = AUTO,
    spec: EngineSpec | None = None,
) -> Fit | None:
    """Linear, unless held-out samples tell for sure that one of ``rivals`` is better that predicts within the limit.
    ``wanted``: a kind that is used instead, where it can be fitted. ``prior`` is an earlier linear fit, ``spec`` what
    the samples were timed on. None where the samples do not tell enough for any."""
    train, held_out = split(observations)

    def fitted(fit: Callable[[Sequence[Observation]], M | None]) -> _Fitted[M] | None:
        model, trained = fit(observations), fit(train)
        if model is None or trained is None:
            return None
        kind, mape = kind_of(model_record(model)), mean_relative_error(trained, held_out)
        return _Fitted(model, trained, Candidate(kind, mape, prediction_us(model, observations)))

    linear = fitted(lambda some: fit_linear(some, prior))
    if linear is None:
        return None
    chosen: _Fitted[Any] = linear
    compared: list[_Fitted[Any]] = [linear, *(found for fit in rivals(spec) if (found := fitted(fit)) is not None)]
    for rival in compared[1:]:
        is_fast = rival.candidate.prediction_us <= prediction_limit_us
        if is_fast and surely_better(rival.trained, chosen.trained, held_out):
            chosen = rival
    asked_for = fitted(FITS_ON_REQUEST[wanted]) if wanted in FITS_ON_REQUEST else None
    compared += [] if asked_for is None else [asked_for]
    chosen = next((each for each in compared if each.candidate.kind == wanted), chosen)
    candidates = tuple(each.candidate for each in compared)
    mape, floor = chosen.candidate.mape, noise_floor(observations)
    return Fit(chosen.model, chosen.trained, len(observations), mape, candidates, floor, linear.model.coefficients())


def rivals(spec: EngineSpec | None) -> Iterator[FitOf]:
    """Of the linear fit; that of the roofline where ``spec`` tells the model's architecture."""
    yield fit_boosted
    if spec is not None and spec.architecture is not None:
        yield partial(fit_roofline, architecture=spec.architecture, tensor_parallel=spec.tensor_parallel)


def calibrated(fitted: Fit, recent: Sequence[Observation]) -> Fit:
    """Scaled so that the total over ``recent`` samples is right: all shapes in the window count alike in a fit, but a
    schedule is made for the machine as it is now and for the shapes that run now."""
    factor = bias(fitted.model, recent)
    linear = LinearLatencyModel(*fitted.linear).scaled(factor).coefficients()
    return replace(fitted, model=fitted.model.scaled(factor), linear=linear)


def bias(model: FittedModel, recent: Sequence[Observation]) -> float:
    """Measured over predicted time, in total; 1 where there is nothing to compare, and the nearer to that the fewer
    samples there are below ENOUGH_RECENT. No sample counts for more than CALIBRATION_LIMITS: one that met a stall would
    make all others seem as much longer."""
    predicted_ms, (low, high) = _predictions(model, recent), CALIBRATION_LIMITS
    measured_ms = np.clip(_latencies_ms(recent), low * predicted_ms, high * predicted_ms)
    ratio = float(measured_ms.sum() / predicted_ms.sum()) if predicted_ms.any() else 1.0
    return 1.0 + (ratio - 1.0) * min(1.0, len(recent) / ENOUGH_RECENT)


def total_ms(model: FittedModel, observations: Sequence[Observation]) -> float:
    """Predicted for all of them together."""
    return sum(model.predict_ms(observation.shape) for observation in observations)


def is_asked_for(fitted: Fit, published: FittedModel, wanted: str) -> bool:
    """Whatever their errors are: ``fitted`` is of the kind that is wanted and ``published`` is not, or ``published`` is
    of one that is used only where it is wanted."""
    kind, before = (kind_of(model_record(model)) for model in (fitted.model, published))
    return kind != before != wanted and (kind == wanted or before in FITS_ON_REQUEST)


def is_better(fitted: Fit, known: Fit, observations: Sequence[Observation]) -> bool:
    """Half a percentage point on held-out samples, and surely; or no worse on these, and 5% away on a tenth of all."""
    _, held_out = split(observations)
    if known.mape - fitted.mape >= BETTER_MAPE and surely_better(fitted.trained, known.trained, held_out):
        return True
    if fitted.mape > known.mape:
        return False
    old, new = (_predictions(each.model, observations) for each in (known, fitted))
    change = np.abs(new - old) / np.maximum(np.maximum(old, new), np.finfo(np.float64).tiny)
    return float(np.quantile(change, DIFFERENT_QUANTILE)) >= DIFFERENT_PREDICTION


def mean_relative_error(model: FittedModel, observations: Sequence[Observation]) -> float:
    """Weighted mean of |predicted - measured| / measured."""
    return float(np.average(_relative_errors(model, observations), weights=[o.weight for o in observations]))


def surely_better(model: FittedModel, other: FittedModel, observations: Sequence[Observation]) -> bool:
    """Its mean relative error is lower by more than two standard errors of the difference, sample by sample."""
    weights = np.array([observation.weight for observation in observations])
    gains = _relative_errors(other, observations) - _relative_errors(model, observations)
    gain = np.average(gains, weights=weights)
    variance = np.average((gains - gain) ** 2, weights=weights)
    num_effective = weights.sum() ** 2 / (weights**2).sum()
    return bool(gain > SURE_SIGMAS * np.sqrt(variance / num_effective))


def split(observations: Sequence[Observation]) -> tuple[list[Observation], list[Observation]]:
    """Train and held-out; a few observations are both."""
    if len(observations) < HOLD_OUT_EVERY:
        return list(observations), list(observations)
    train = [o for n, o in enumerate(observations, start=1) if n % HOLD_OUT_EVERY]
    return train, list(observations[HOLD_OUT_EVERY - 1 :: HOLD_OUT_EVERY])


def _now_s() -> float:
    return time.perf_counter()


def prediction_us(
    model: FittedModel, observations: Sequence[Observation], now_s: Callable[[], float] = _now_s
) -> float:
    """Microseconds of one decode's marginal cost, asked for each running request: the fastest of some rounds."""
    batches = [observation.shape for observation in observations[:TIMED_BATCHES]]
    rounds = []
    for _ in range(TIMED_ROUNDS):
        start_s = now_s()
        for features in batches:
            model.decode_cost_ms(features, TIMED_CONTEXT)
        rounds.append(now_s() - start_s)
    return min(rounds) / len(batches) * 1e6


def _rescaled(
    published: FittedModel, factor: float, fitted: Fit, prior: Coefficients | None, observations: Sequence[Observation]
) -> Fit:
    """What is published, its times multiplied, as a fit beside that to the same samples."""
    model, (_, held_out) = published.scaled(factor), split(observations)
    kind, mape = kind_of(model_record(model)), mean_relative_error(model, held_out)
    others = (each for each in fitted.candidates if each.kind != kind)
    candidates = (*others, Candidate(kind, mape, prediction_us(model, observations)))
    linear = fitted.linear if prior is None else LinearLatencyModel(*prior).scaled(factor).coefficients()
    return replace(fitted, model=model, trained=model, mape=mape, candidates=candidates, linear=linear)


def _relative_errors(model: FittedModel, observations: Sequence[Observation]) -> Array:
    errors: Array = np.abs(_predictions(model, observations) / _latencies_ms(observations) - 1.0)
    return errors


def _latencies_ms(observations: Sequence[Observation]) -> Array:
    return np.array([observation.latency_ms for observation in observations])


def _predictions(model: FittedModel, observations: Sequence[Observation]) -> Array:
    return np.array([model.predict_ms(observation.shape) for observation in observations])
