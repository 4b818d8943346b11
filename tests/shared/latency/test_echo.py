"""Echo's model: the values of Eq. 6 to 8, what more work costs, the fit, and the record."""

import math
import random
from copy import copy

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.predictor.echo_fit import fit_echo
from services.predictor.fit import FITS_ON_REQUEST, fit_best, mean_relative_error
from services.predictor.settings import LATENCY_MODELS
from services.predictor.window import Observation
from shared.latency.echo import EchoLatencyModel
from shared.latency.features import BatchFeatures
from shared.latency.revisable import RevisableFeatures
from shared.protocol.profiling.latency_models import LatencyModelRecord, model_record
from tests.shared.latency.shapes import make_shape, timed, varied_shapes
from tests.shared.latency.test_linear import batches, contexts, longest_by_search, token_counts

TRUTH = EchoLatencyModel(2e-5, 0.2, 30.0, 0.01, 0.02, 0.8)

weights = st.one_of(st.just(0.0), st.floats(1e-9, 50.0))
models = st.builds(EchoLatencyModel, *(weights for _ in range(5)), st.floats(0.5, 1.0))


def test_a_prompt_alone_is_eq_6() -> None:
    model = EchoLatencyModel(1e-3, 0.2, 30.0, 1.0, 1.0, 1.0)
    assert model.predict_ms(make_shape([1000])) == pytest.approx(1e-3 * 1000**2 + 0.2 * 1000)
    assert model.predict_ms(make_shape([20])) == 30.0  # 4.4 of its own
    parts_ms = [model.predict_ms(make_shape([chunk])) for chunk in ((400, 0), (350, 400), (250, 750))]
    assert sum(parts_ms) == pytest.approx(1200.0)
    several = make_shape([(300, 100), 200])
    assert model.predict_ms(several) == pytest.approx(1e-3 * (400**2 - 100**2 + 200**2) + 0.2 * 500)


def test_decodes_alone_are_eq_7() -> None:
    model = EchoLatencyModel(0.0, 0.0, 5.0, 0.01, 0.02, 1.0)
    assert model.predict_ms(make_shape((), [100, 400, 1000])) == pytest.approx(0.01 * 1000 + 0.02 * 500)
    assert model.predict_ms(make_shape((), [1000] * 64)) == pytest.approx(30.0)
    assert model.predict_ms(BatchFeatures()) == 0.0


def test_both_phases_are_eq_8() -> None:
    """A phase that is not there takes no time."""
    both = make_shape([1000], [100, 400, 1000])
    prefill_ms, decode_ms = 2e-5 * 1000**2 + 0.2 * 1000, 0.01 * 1000 + 0.02 * 500
    assert TRUTH.predict_ms(both) == pytest.approx(0.8 * prefill_ms + 0.2 * decode_ms)
    alone_ms = [TRUTH.predict_ms(make_shape([1000])), TRUTH.predict_ms(make_shape((), [100, 400, 1000]))]
    assert alone_ms == [pytest.approx(0.8 * prefill_ms), pytest.approx(0.8 * decode_ms)]
    assert max(alone_ms) < TRUTH.predict_ms(both) < sum(alone_ms)


def test_who_does_not_tell_the_longest_decode_has_one_of_the_mean() -> None:
    assert TRUTH.predict_ms(BatchFeatures(0, 0, 600, 2)) == TRUTH.predict_ms(make_shape((), [300, 300]))


@given(models, batches(), token_counts, contexts)
def test_a_marginal_cost_is_the_difference_of_two_predictions_unless_that_falls(
    model: EchoLatencyModel, features: BatchFeatures, num_tokens: int, num_computed: int
) -> None:
    before_ms = model.predict_ms(features)
    with_prefill, with_decode = copy(features), copy(features)
    with_prefill.add_prefill(num_tokens, num_computed)
    with_decode.add_decode(num_tokens)
    exact = {"rel": 1e-9, "abs": 1e-9 * max(before_ms, 1.0)}
    prefill_ms, decode_ms = model.predict_ms(with_prefill) - before_ms, model.predict_ms(with_decode) - before_ms
    assert model.prefill_cost_ms(features, num_tokens, num_computed) == pytest.approx(prefill_ms, **exact)
    assert model.decode_cost_ms(features, num_tokens) == pytest.approx(max(decode_ms, 0.0), **exact)
    assert min(model.prefill_cost_ms(features, num_tokens, num_computed), model.decode_cost_ms(features, 1)) >= 0


@given(models, batches(), token_counts, contexts, st.integers(1, 500))
def test_more_work_takes_no_less_but_for_decodes_below_the_mean(
    model: EchoLatencyModel, features: BatchFeatures, num_tokens: int, num_computed: int, more: int
) -> None:
    slack = 1 + 1e-12
    before_ms = model.predict_ms(features) / slack
    changed = copy(features)
    changed.add_prefill(num_tokens, num_computed)
    assert model.predict_ms(changed) >= before_ms
    changed = copy(features)
    mean = features.decode_kv_tokens / max(features.decode_requests, 1)
    changed.add_decode(math.ceil(mean) + more)
    assert model.predict_ms(changed) >= before_ms
    shorter, longer = copy(features), copy(features)
    shorter.add_decode(num_tokens)
    longer.add_decode(num_tokens + more)
    assert model.predict_ms(longer) >= model.predict_ms(shorter) / slack
    assert model.decode_cost_ms(features, num_tokens + more) >= model.decode_cost_ms(features, num_tokens) - 1e-9 * (
        before_ms + 1.0
    )


@given(models, st.lists(token_counts, max_size=12), st.lists(st.tuples(token_counts, contexts), max_size=3))
def test_what_is_added_up_is_no_less_than_the_whole(
    model: EchoLatencyModel, context_lens: list[int], chunks: list[tuple[int, int]]
) -> None:
    features, total_ms = RevisableFeatures(), 0.0
    for context_len in context_lens:
        total_ms += model.decode_cost_ms(features, context_len)
        features.add_decode(context_len)
    for chunk in chunks:
        total_ms += model.prefill_cost_ms(features, *chunk)
        features.add_prefill(*chunk)
    assert total_ms >= model.predict_ms(features) * (1 - 1e-9)
    if context_lens == sorted(context_lens):  # then no mean falls
        assert total_ms == pytest.approx(model.predict_ms(features), rel=1e-9)


@given(models, batches(), contexts, st.floats(-10, 1e5), st.integers(0, 300))
def test_the_longest_chunk_equals_a_linear_search(
    model: EchoLatencyModel, features: BatchFeatures, num_computed: int, budget_ms: float, limit: int
) -> None:
    expected = longest_by_search(model, features, num_computed, budget_ms, limit)
    assert model.max_prefill_tokens(features, num_computed, budget_ms, limit) == expected


@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf])
def test_a_bad_coefficient_is_refused_by_name(bad: float) -> None:
    with pytest.raises(ValueError, match="prefill_least"):
        EchoLatencyModel(1, 1, bad, 0, 0, 1.0)


@pytest.mark.parametrize("balance", [0.49, 1.01])
def test_a_balance_is_between_the_sum_and_the_longer_phase(balance: float) -> None:
    with pytest.raises(ValueError, match=r"balance is .* between 0.5 and 1"):
        EchoLatencyModel(1, 1, 1, 0, 0, balance)


def observe(truth: EchoLatencyModel, count: int, noise: float, seed: int = 1) -> list[Observation]:
    rng = random.Random(seed)
    shapes = varied_shapes(rng, count)
    return [Observation(shape, truth.predict_ms(shape) * rng.gauss(1.0, noise)) for shape in shapes]


@pytest.mark.parametrize("balance", [0.5, 0.7, 0.8, 1.0])
@pytest.mark.parametrize("least_ms", [0.0, 30.0])
def test_a_fit_finds_the_coefficients_again(balance: float, least_ms: float) -> None:
    truth = EchoLatencyModel(2e-5, 0.2, least_ms, 0.01, 0.02, balance)
    exact = fit_echo(observe(truth, 400, 0.0))
    assert exact is not None and mean_relative_error(exact, observe(truth, 200, 0.0, seed=2)) < 2e-3
    assert exact.balance == pytest.approx(balance, abs=0.005)
    assert exact.coefficients()[:2] == pytest.approx(truth.coefficients()[:2], rel=0.02)
    assert exact.coefficients()[3:5] == pytest.approx(truth.coefficients()[3:5], rel=0.02)
    noisy = fit_echo(observe(truth, 600, 0.02))
    assert noisy is not None and mean_relative_error(noisy, observe(truth, 200, 0.0, seed=2)) < 0.01


def test_a_fit_of_few_samples_is_sound_and_some_odd_ones_do_no_harm() -> None:
    few = fit_echo(observe(TRUTH, 24, 0.02))
    assert few is not None and mean_relative_error(few, observe(TRUTH, 200, 0.0, seed=2)) < 0.1
    observations = observe(TRUTH, 400, 0.01)
    numbered = enumerate(observations)
    odd = [Observation(each.shape, each.latency_ms * (20.0 if n % 40 == 0 else 1.0)) for n, each in numbered]
    fitted = fit_echo(odd)
    assert fitted is not None and mean_relative_error(fitted, observe(TRUTH, 200, 0.0, seed=2)) < 0.02


def test_samples_of_one_phase_tell_too_little() -> None:
    rng = random.Random(2)
    assert fit_echo(timed([make_shape((), [n] * 3) for n in range(1, 50)], rng, 0.0)) is None
    assert fit_echo(observe(TRUTH, 5, 0.0)) is None


def test_phases_that_never_meet_are_taken_to_come_one_after_the_other() -> None:
    shapes = [make_shape([n]) for n in range(100, 2000, 100)] + [make_shape((), [n, 50]) for n in range(50, 1000, 50)]
    fitted = fit_echo([Observation(shape, TRUTH.predict_ms(shape)) for shape in shapes])
    assert fitted is not None and fitted.balance == 0.5
    assert all(fitted.predict_ms(shape) == pytest.approx(TRUTH.predict_ms(shape), rel=1e-3) for shape in shapes)


def test_it_is_fitted_where_it_is_wanted_and_only_there() -> None:
    observations = observe(TRUTH, 300, 0.01)
    fitted = fit_best(observations, wanted="echo")
    assert fitted is not None and isinstance(fitted.model, EchoLatencyModel)
    assert [candidate.kind for candidate in fitted.candidates] == ["linear", "boosted", "echo"]
    assert fitted.mape == fitted.candidates[2].mape < 0.015
    best = fit_best(observations)
    assert best is not None and [candidate.kind for candidate in best.candidates] == ["linear", "boosted"]


def test_whatever_may_be_wanted_can_be_fitted() -> None:
    assert set(LATENCY_MODELS) == {"auto", "roofline", *FITS_ON_REQUEST}


def test_the_record_is_the_model() -> None:
    record = LatencyModelRecord("key", model_record(TRUTH), 10, 0.01, 1.0)
    again = msgspec.json.decode(msgspec.json.encode(record), type=LatencyModelRecord)
    assert again.kind == "echo" and again.latency_model() == TRUTH
    shape = make_shape([(300, 20)], [40, 900])
    assert TRUTH.scaled(2.0).predict_ms(shape) == pytest.approx(2 * TRUTH.predict_ms(shape))
