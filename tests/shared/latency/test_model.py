"""What holds of any latency model that is asked: longest chunks, what a request adds, the cheapest step."""

from copy import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import added_ms, cheapest_step_ms, longest_chunk, require_sound
from tests.shared.latency.shapes import TRUTH, make_shape
from tests.shared.latency.test_linear import batches

MODEL = LinearLatencyModel(*TRUTH)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=10))
def test_the_longest_chunk_is_what_a_search_finds(rises: list[int]) -> None:
    """Whatever it costs that never falls: in as many questions as halving has, and in one where all fits."""
    costs = [sum(rises[:num_tokens]) for num_tokens in range(len(rises) + 1)]
    asked = list[int]()

    def cost(num_tokens: int) -> int:
        asked.append(num_tokens)
        return costs[num_tokens]

    for limit in range(-1, len(costs)):
        for budget in (-1, *costs):
            asked.clear()
            fitting = [num_tokens for num_tokens in range(1, limit + 1) if costs[num_tokens] <= budget]
            assert longest_chunk(cost, budget, limit) == max(fitting, default=0)
            assert all(1 <= each <= limit for each in asked) and len(asked) <= 1 + max(limit, 0).bit_length()
            assert limit not in fitting or asked == [limit]


@given(batches(), st.integers(1, 3), st.integers(0, 3))
def test_what_a_request_adds_is_what_the_batch_takes_longer_with_it(
    features: BatchFeatures, num_tokens: int, num_computed: int
) -> None:
    after = copy(features)
    after.add_scheduled(num_tokens, num_computed)
    expected_ms = MODEL.predict_ms(after) - MODEL.predict_ms(features)
    assert added_ms(MODEL, features, num_tokens, num_computed) == pytest.approx(expected_ms, rel=1e-6)


def test_the_cheapest_step_begins_the_shortest_prompt() -> None:
    assert cheapest_step_ms(MODEL) == MODEL.predict_ms(make_shape([1]))


@pytest.mark.parametrize("value", [-1e-300, float("nan"), float("inf"), float("-inf")])
def test_a_coefficient_that_is_none_is_named(value: float) -> None:
    require_sound([("first", 0.0), ("second", 1e300)])
    with pytest.raises(ValueError, match="coefficient second is"):
        require_sound([("first", 0.0), ("second", value)])
