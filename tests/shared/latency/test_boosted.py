"""The boosted model: curves, marginal costs that are differences, the longest chunk, and its way over the bus."""

import math
from copy import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.latency.boosted import BoostedLatencyModel, Curve, Sum, sums_of
from shared.latency.features import BatchFeatures
from shared.protocol.codec import decode_record, encode_record
from shared.protocol.profiling.latency_models import LatencyModelRecord, LinearCoefficients, model_record
from tests.shared.latency.shapes import TRUTH, make_shape

slopes = st.one_of(st.just(0.0), st.floats(1e-6, 10.0))


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    gaps = draw(st.lists(st.integers(1, 3000), max_size=6))
    knots = tuple(sum(gaps[:count]) for count in range(len(gaps) + 1))
    return Curve(knots, tuple(draw(slopes) for _ in knots))


models = st.builds(BoostedLatencyModel, st.floats(0, 100), st.dictionaries(st.sampled_from(Sum), curves()))
batches = st.builds(
    lambda chunks, contexts: make_shape(chunks, contexts),
    st.lists(st.tuples(st.integers(1, 2048), st.integers(0, 8192)), max_size=4),
    st.lists(st.integers(1, 4096), max_size=40),
)
lengths = st.integers(1, 4096)


@given(curves(), st.integers(0, 20_000), st.integers(0, 20_000))
def test_a_curve_never_falls_and_its_rise_is_a_difference(curve: Curve, first: int, second: int) -> None:
    start, end = sorted((first, second))
    assert curve.at(0) == 0
    assert curve.at(start) <= curve.at(end)
    assert curve.rise(start, end) == pytest.approx(curve.at(end) - curve.at(start), rel=1e-9, abs=1e-9)


def test_a_rise_between_two_knots_has_all_its_digits() -> None:
    """However high the curve is there, which the difference of two of its values has none left beside."""
    curve = Curve((0, 1000, 2000), (1e15, 1e-9, 1.0))
    assert curve.rise(1500, 1750) == curve.rise(1750, 2000) == pytest.approx(250e-9)
    assert curve.rise(2000, 2001) == curve.rise(5000, 5001) == 1.0


@given(curves())
def test_a_curve_is_the_sum_of_its_steps_and_goes_on_beyond(curve: Curve) -> None:
    steps = curve.steps()
    assert len(steps) == curve.knots[-1] + 1
    assert curve.at(len(steps)) == pytest.approx(math.fsum(steps))
    assert curve.at(len(steps) + 100) - curve.at(len(steps)) == pytest.approx(100 * steps[-1], abs=1e-6)


@given(models, batches, lengths, st.integers(0, 8192))
def test_a_marginal_cost_is_the_difference_of_two_predictions(
    model: BoostedLatencyModel, features: BatchFeatures, num_tokens: int, num_computed: int
) -> None:
    with_prefill, with_decode = copy(features), copy(features)
    with_prefill.add_prefill(num_tokens, num_computed)
    with_decode.add_decode(num_tokens)
    before = model.predict_ms(features)
    for cost, after in (
        (model.prefill_cost_ms(features, num_tokens, num_computed), model.predict_ms(with_prefill)),
        (model.decode_cost_ms(features, num_tokens), model.predict_ms(with_decode)),
    ):
        assert cost == pytest.approx(after - before, rel=1e-6, abs=1e-9 * max(after, 1.0))
        assert cost >= 0


@given(models, batches, st.integers(0, 8192), st.floats(0, 1e4), st.integers(0, 4096))
def test_the_longest_chunk_is_the_longest(
    model: BoostedLatencyModel, features: BatchFeatures, num_computed: int, budget_ms: float, limit: int
) -> None:
    tokens = model.max_prefill_tokens(features, num_computed, budget_ms, limit)
    assert 0 <= tokens <= limit
    assert tokens == 0 or model.prefill_cost_ms(features, tokens, num_computed) <= budget_ms
    assert tokens == limit or model.prefill_cost_ms(features, tokens + 1, num_computed) > budget_ms


@given(models, batches, st.floats(0.1, 10))
def test_a_scaled_model_predicts_so_many_times_as_much(
    model: BoostedLatencyModel, features: BatchFeatures, factor: float
) -> None:
    assert model.scaled(factor).predict_ms(features) == pytest.approx(factor * model.predict_ms(features))


@given(models)
def test_a_model_survives_the_bus(model: BoostedLatencyModel) -> None:
    record = LatencyModelRecord("key", model_record(model), 10, 0.01, 1.0)
    assert decode_record(encode_record(record), LatencyModelRecord).latency_model() == model
    assert record.kind == "boosted"


def test_a_linear_model_survives_the_bus() -> None:
    record = LatencyModelRecord("key", LinearCoefficients(TRUTH), 10, 0.01, 1.0)
    again = decode_record(encode_record(record), LatencyModelRecord)
    assert again == record and again.kind == "linear"
    assert model_record(again.latency_model()) == record.model


def test_sums_are_in_the_order_of_their_names() -> None:
    features = BatchFeatures(30, 2, 500, 5, 700)
    assert dict(zip(Sum, sums_of(features), strict=True)) == {
        Sum.TOKENS: 35,
        Sum.REQUESTS: 7,
        Sum.PREFILL_PAIRS: 700,
        Sum.DECODE_KV_TOKENS: 500,
        Sum.PREFILL_REQUESTS: 2,
        Sum.DECODE_REQUESTS: 5,
    }


def test_an_empty_batch_takes_no_time_and_its_first_request_the_base() -> None:
    model = BoostedLatencyModel(7.0, {Sum.REQUESTS: Curve((0, 3), (0.0, 1.0))})
    assert model.predict_ms(BatchFeatures()) == 0.0
    assert model.decode_cost_ms(BatchFeatures(), 10) == model.prefill_cost_ms(BatchFeatures(), 10, 0) == 7.0
    assert model.decode_cost_ms(BatchFeatures(0, 0, 30, 3), 10) == 1.0


@pytest.mark.parametrize(
    ("knots", "slopes", "said"),
    [
        ((1, 2), (1.0, 1.0), "first knot is 0"),
        ((0, 5), (1.0,), "one slope for each knot"),
        ((0, 5, 5), (1.0, 1.0, 1.0), "ascend"),
        ((0,), (-1.0,), "not negative"),
        ((0, 5), (1.0, -1.0), "not negative"),
        ((0,), (math.nan,), "finite"),
        ((0,), (math.inf,), "finite"),
    ],
)
def test_what_is_no_curve_is_refused(knots: tuple[int, ...], slopes: tuple[float, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Curve(knots, slopes)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ValueError, match="base is -1"):
        BoostedLatencyModel(-1.0, {})
    with pytest.raises(ValueError, match="ends before 65536"):
        BoostedLatencyModel(1.0, {Sum.TOKENS: Curve((0, 1 << 17), (1.0, 1.0))})
