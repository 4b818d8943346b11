"""Eq. 1's linear model: marginal costs, the longest chunk that fits, and the running sums."""

import math
from copy import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.latency.features import BatchFeatures
from shared.latency.linear import NUM_COEFFICIENTS, LinearLatencyModel, feature_row
from shared.latency.model import LatencyModel

weights = st.one_of(st.just(0.0), st.floats(1e-9, 50.0))
models = st.builds(LinearLatencyModel, *(weights for _ in range(NUM_COEFFICIENTS)))
token_counts = st.integers(1, 4096)
contexts = st.integers(0, 8192)
chunks = st.tuples(token_counts, contexts)


@st.composite
def batches(draw: st.DrawFn) -> BatchFeatures:
    features = BatchFeatures()
    for num_tokens, num_computed in draw(st.lists(chunks, max_size=6)):
        features.add_prefill(num_tokens, num_computed)
    for context_len in draw(st.lists(token_counts, max_size=6)):
        features.add_decode(context_len)
    return features


def check_marginal_costs(model: LatencyModel, features: BatchFeatures, num_tokens: int, num_computed: int) -> None:
    before = model.predict_ms(features)
    with_prefill, with_decode = copy(features), copy(features)
    with_prefill.add_prefill(num_tokens, num_computed)
    with_decode.add_decode(num_tokens)
    for cost, after in (
        (model.prefill_cost_ms(features, num_tokens, num_computed), model.predict_ms(with_prefill)),
        (model.decode_cost_ms(features, num_tokens), model.predict_ms(with_decode)),
    ):
        assert cost == pytest.approx(after - before, rel=1e-6, abs=1e-9 * max(after, 1.0))
        assert cost >= 0


def longest_by_search(
    model: LatencyModel, features: BatchFeatures, num_computed: int, budget_ms: float, limit: int
) -> int:
    fitting = (n for n in range(limit, 0, -1) if model.prefill_cost_ms(features, n, num_computed) <= budget_ms)
    return next(fitting, 0)


@given(models, batches(), token_counts, contexts)
def test_a_marginal_cost_is_the_difference_of_two_predictions(
    model: LinearLatencyModel, features: BatchFeatures, num_tokens: int, num_computed: int
) -> None:
    check_marginal_costs(model, features, num_tokens, num_computed)


@given(models, batches(), st.lists(st.tuples(st.booleans(), token_counts, contexts), max_size=8))
def test_costs_of_single_additions_sum_to_the_prediction(
    model: LinearLatencyModel, features: BatchFeatures, additions: list[tuple[bool, int, int]]
) -> None:
    total = model.predict_ms(features)
    for is_prefill, num_tokens, num_computed in additions:
        if is_prefill:
            total += model.prefill_cost_ms(features, num_tokens, num_computed)
            features.add_prefill(num_tokens, num_computed)
        else:
            total += model.decode_cost_ms(features, num_tokens)
            features.add_decode(num_tokens)
    assert total == pytest.approx(model.predict_ms(features), rel=1e-9, abs=1e-9)


@given(models, batches(), contexts, st.floats(0, 1e5), st.integers(0, 300))
def test_the_longest_chunk_equals_a_linear_search(
    model: LinearLatencyModel, features: BatchFeatures, num_computed: int, budget_ms: float, limit: int
) -> None:
    expected = longest_by_search(model, features, num_computed, budget_ms, limit)
    assert model.max_prefill_tokens(features, num_computed, budget_ms, limit) == expected


@given(models, batches(), contexts, st.integers(1, 300), st.integers(1, 300))
def test_a_budget_that_is_exactly_a_chunks_cost_admits_that_chunk(
    model: LinearLatencyModel, features: BatchFeatures, num_computed: int, num_tokens: int, limit: int
) -> None:
    exact_ms = model.prefill_cost_ms(features, num_tokens, num_computed)
    assert model.max_prefill_tokens(features, num_computed, exact_ms, limit) >= min(num_tokens, limit)
    below_ms = math.nextafter(exact_ms, -math.inf)
    expected = longest_by_search(model, features, num_computed, below_ms, limit)
    assert model.max_prefill_tokens(features, num_computed, below_ms, limit) == expected


class Counting(LinearLatencyModel):
    """How often its marginal cost is asked."""

    num_asked = 0

    def prefill_cost_ms(self, features: BatchFeatures, num_tokens: int, num_computed_tokens: int) -> float:
        Counting.num_asked += 1
        return LinearLatencyModel.prefill_cost_ms(self, features, num_tokens, num_computed_tokens)


@given(
    st.builds(
        Counting,
        st.floats(0, 100.0),
        st.floats(1e-4, 1.0),
        weights,
        st.sampled_from([0.0, 1e-8, 1e-5, 1e-3]),
        weights,
        st.floats(0, 10.0),
        weights,
        st.sampled_from([0.0, 1e-7, 1e-5, 1e-3]),
    ),
    batches() | st.just(BatchFeatures()),
    contexts,
    st.integers(2, 8000),
)
def test_the_longest_chunk_is_at_the_root_or_beside_it(
    model: Counting, features: BatchFeatures, num_computed: int, num_tokens: int
) -> None:
    """Coefficients as they are measured: the cost of one token, of all, and of no more than three places and those
    after them is asked, however long the chunk may be."""
    exact_ms, more_ms = (model.prefill_cost_ms(features, n, num_computed) for n in (num_tokens, num_tokens + 1))
    for budget_ms, expected in (
        (exact_ms, num_tokens),
        ((exact_ms + more_ms) / 2, num_tokens),
        (math.nextafter(exact_ms, -math.inf), num_tokens - 1),
    ):
        Counting.num_asked = 0
        assert model.max_prefill_tokens(features, num_computed, budget_ms, 1 << 20) == expected
        assert Counting.num_asked <= 8


@given(models, batches(), contexts, st.floats(-10, 1e4), st.floats(0, 1e4), st.integers(0, 10_000))
def test_more_budget_never_shortens_the_chunk(
    model: LinearLatencyModel,
    features: BatchFeatures,
    num_computed: int,
    budget_ms: float,
    more_ms: float,
    limit: int,
) -> None:
    shorter = model.max_prefill_tokens(features, num_computed, budget_ms, limit)
    longer = model.max_prefill_tokens(features, num_computed, budget_ms + more_ms, limit)
    assert 0 <= shorter <= longer <= limit


@given(models, batches(), contexts, st.integers(1, 10**6))
def test_no_budget_means_the_limit(
    model: LinearLatencyModel, features: BatchFeatures, num_computed: int, limit: int
) -> None:
    assert model.max_prefill_tokens(features, num_computed, math.inf, limit) == limit


def test_a_budget_that_the_fixed_cost_uses_up_admits_no_token() -> None:
    only_square = LinearLatencyModel(0, 0, 0, 1e-3, 0, 2.0, 0)
    assert only_square.max_prefill_tokens(BatchFeatures(), 0, 2.0, 512) == 0
    assert only_square.max_prefill_tokens(BatchFeatures(), 0, 1.0, 512) == 0


def test_a_chunk_late_in_a_prompt_takes_longer_and_two_chunks_have_the_pairs_of_one() -> None:
    model = LinearLatencyModel(5.0, 0.1, 0, 0, 0, 0, 0, 1e-4)
    costs = [model.prefill_cost_ms(BatchFeatures(), 100, num_computed) for num_computed in (0, 500, 4000)]
    assert costs == pytest.approx([15.0 + 1e-4 * (100 * before + 5050) for before in (0, 500, 4000)])
    whole, halves = BatchFeatures(), BatchFeatures()
    whole.add_prefill(700, 50)
    halves.add_prefill(300, 50)
    halves.add_prefill(400, 350)
    assert whole.prefill_pairs == halves.prefill_pairs


@given(models, batches(), token_counts, contexts)
def test_more_work_never_takes_less_time(
    model: LinearLatencyModel, features: BatchFeatures, num_tokens: int, num_computed: int
) -> None:
    base = model.predict_ms(features)
    with_prefill, with_decode = copy(features), copy(features)
    with_prefill.add_prefill(num_tokens, num_computed)
    with_decode.add_decode(num_tokens)
    assert model.predict_ms(with_prefill) >= base
    assert model.predict_ms(with_decode) >= base


def test_an_empty_batch_takes_no_time() -> None:
    model = LinearLatencyModel(5.0, 1, 1, 1, 1, 1, 1)
    assert BatchFeatures().is_empty
    assert model.predict_ms(BatchFeatures()) == 0.0
    assert model.decode_cost_ms(BatchFeatures(), 1) == 5.0 + 1 + 1 + 1


def test_a_row_follows_the_order_of_the_coefficients() -> None:
    row = feature_row(BatchFeatures(3, 2, 5, 4, prefill_pairs=7))
    assert row == (1.0, 3.0, 5.0, 9.0, 25.0, 2.0, 4.0, 7.0)
    model = LinearLatencyModel(*row)
    assert model.coefficients() == row


@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf])
def test_a_bad_coefficient_is_refused_by_name(bad: float) -> None:
    with pytest.raises(ValueError, match="kv_token"):
        LinearLatencyModel(1, 1, bad, 0, 0, 0, 0)
