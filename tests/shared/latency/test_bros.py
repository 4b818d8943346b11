"""BROS's lines: marginal costs, chunks, the fit, and the record."""

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.predictor.fit import fit_best
from services.predictor.linear_fit import fit_bros
from services.predictor.window import Observation
from shared.latency.bros import BrosLatencyModel
from shared.latency.features import BatchFeatures
from shared.protocol.profiling.latency_models import LatencyModelRecord, model_record
from tests.shared.latency.shapes import make_shape, timed, varied_shapes
from tests.shared.latency.test_linear import batches, check_marginal_costs, contexts, longest_by_search, token_counts

TRUTH = BrosLatencyModel(8.0, 0.6, 2e-4, 12.0, 0.4, 3e-3)

weights = st.one_of(st.just(0.0), st.floats(1e-9, 50.0))
models = st.builds(BrosLatencyModel, *(weights for _ in range(6)))


@given(models, batches(), token_counts, contexts)
def test_a_marginal_cost_is_the_difference_of_two_predictions(
    model: BrosLatencyModel, features: BatchFeatures, num_tokens: int, num_computed: int
) -> None:
    check_marginal_costs(model, features, num_tokens, num_computed)


@given(models, batches(), contexts, st.floats(-10, 1e5), st.integers(0, 300))
def test_the_longest_chunk_equals_a_linear_search(
    model: BrosLatencyModel, features: BatchFeatures, num_computed: int, budget_ms: float, limit: int
) -> None:
    expected = longest_by_search(model, features, num_computed, budget_ms, limit)
    assert model.max_prefill_tokens(features, num_computed, budget_ms, limit) == expected


def test_each_phase_has_its_line_and_none_where_it_is_not() -> None:
    both = make_shape([(100, 50), 20], [30, 40])
    pairs = 100 * 50 + 100 * 101 / 2 + 20 * 21 / 2
    prefills_ms = 8.0 + 0.6 * 120 + 2e-4 * pairs
    decodes_ms = 12.0 + 0.4 * 2 + 3e-3 * 70
    assert TRUTH.predict_ms(both) == pytest.approx(prefills_ms + decodes_ms)
    assert TRUTH.predict_ms(make_shape([(100, 50), 20])) == pytest.approx(prefills_ms)
    assert TRUTH.predict_ms(make_shape((), [30, 40])) == pytest.approx(decodes_ms)
    assert TRUTH.predict_ms(BatchFeatures()) == 0.0


@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf])
def test_a_bad_coefficient_is_refused_by_name(bad: float) -> None:
    with pytest.raises(ValueError, match="prefill_pair"):
        BrosLatencyModel(1, 1, bad, 0, 0, 0)


def observe(count: int, noise: float) -> list[Observation]:
    rng = random.Random(1)
    shapes = varied_shapes(rng, count)
    return [Observation(shape, TRUTH.predict_ms(shape) * rng.gauss(1.0, noise)) for shape in shapes]


def test_a_fit_finds_the_lines_again() -> None:
    exact = fit_bros(observe(200, 0.0))
    assert exact is not None and exact.coefficients() == pytest.approx(TRUTH.coefficients())
    noisy = fit_bros(observe(600, 0.02))
    assert noisy is not None and noisy.coefficients() == pytest.approx(TRUTH.coefficients(), rel=0.1)


def test_samples_of_one_phase_tell_too_little() -> None:
    rng = random.Random(2)
    assert fit_bros(timed([make_shape((), [n] * 3) for n in range(1, 50)], rng, 0.0)) is None
    assert fit_bros(observe(5, 0.0)) is None


def test_it_is_fitted_where_it_is_wanted_and_only_there() -> None:
    observations = observe(300, 0.01)
    fitted = fit_best(observations, wanted="bros")
    assert fitted is not None and isinstance(fitted.model, BrosLatencyModel)
    assert [candidate.kind for candidate in fitted.candidates] == ["linear", "boosted", "bros"]
    assert fitted.mape == fitted.candidates[2].mape < 0.012
    best = fit_best(observations)
    assert best is not None and [candidate.kind for candidate in best.candidates] == ["linear", "boosted"]
    rng = random.Random(3)
    few = timed([make_shape([n]) for n in range(1, 20)], rng, 0.0)
    without = fit_best(few, prior=(1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0), wanted="bros")
    assert without is not None and [candidate.kind for candidate in without.candidates] == ["linear"]


def test_the_record_is_the_model() -> None:
    record = LatencyModelRecord("key", model_record(TRUTH), 10, 0.01, 1.0)
    again = msgspec.json.decode(msgspec.json.encode(record), type=LatencyModelRecord)
    assert again.kind == "bros" and again.latency_model() == TRUTH
    assert TRUTH.scaled(2.0).predict_ms(BatchFeatures(3, 1, 5, 2, 9)) == pytest.approx(
        2 * TRUTH.predict_ms(BatchFeatures(3, 1, 5, 2, 9))
    )
