"""Devices that overlap: the least time by the mapping itself, bounds, monotone, marginal costs that are differences."""

from bisect import bisect_right
from copy import copy
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.latency.features import BatchFeatures
from shared.latency.overlapping import NANOFLOW, Interference, OverlappingLatencyModel
from tests.shared.latency.shapes import make_shape, roofline

ADDING = roofline("llama3.1-8b", "a100-80g")
OVERLAPPING = OverlappingLatencyModel(ADDING)
TIMES = st.floats(0, 500)
FEATURES = st.builds(
    lambda chunks, contexts: make_shape(chunks, contexts),
    st.lists(st.tuples(st.integers(1, 2048), st.integers(0, 8192)), max_size=4),
    st.lists(st.integers(2, 20_000), max_size=64),
)


def speed(share: float) -> float:
    """f(r), between the points of the mapping."""
    place = min(bisect_right([point[0] for point in NANOFLOW], share), len(NANOFLOW) - 1)
    (low, at_low), (high, at_high) = NANOFLOW[place - 1], NANOFLOW[place]
    return at_low + (at_high - at_low) * (share - low) / (high - low)


def searched_ms(compute_ms: float, memory_ms: float) -> float:
    """The least t with t f(1 - compute / t) >= memory, by halving."""
    low, high = compute_ms, compute_ms + memory_ms
    for _ in range(80):
        middle = (low + high) / 2
        done = middle * speed(1 - compute_ms / middle) if middle else 0.0
        low, high = (low, middle) if done >= memory_ms else (middle, high)
    return high


@given(TIMES, TIMES)
def test_the_least_time_is_what_a_search_finds(compute_ms: float, memory_ms: float) -> None:
    assert Interference().together_ms(compute_ms, memory_ms) == pytest.approx(
        searched_ms(compute_ms, memory_ms), abs=1e-6
    )


@given(TIMES, TIMES, TIMES, TIMES)
def test_changing_splits_are_no_better_than_an_even_one(a: float, b: float, c: float, d: float) -> None:
    apart = Interference().together_ms(a, b) + Interference().together_ms(c, d)
    assert Interference().together_ms(a + c, b + d) <= apart + 1e-6


def test_two_equal_parts_gain_a_sixth() -> None:
    """40% of the GPU reads at 60% of its best, the rest computes at 60% of its best."""
    assert Interference().together_ms(60.0, 60.0) == pytest.approx(100.0)
    gains = [(c + 1) / Interference().together_ms(c, 1.0) for c in (0.1, 0.5, 1.0, 1.5, 2.0, 10.0)]
    assert max(gains) == pytest.approx(1.2) and gains[0] < gains[1] and gains[-1] < gains[-2]


def test_one_alone_takes_what_it_takes() -> None:
    assert Interference().together_ms(7.0, 0.0) == Interference().together_ms(0.0, 7.0) == 7.0
    ideal = Interference(((0.0, 0.0), (1e-9, 1.0), (1.0, 1.0)))
    assert ideal.together_ms(3.0, 5.0) == pytest.approx(5.0) and ideal.together_ms(5.0, 3.0) == pytest.approx(5.0)
    none = Interference(((0.0, 0.0), (1.0, 1.0)))
    assert none.together_ms(3.0, 5.0) == 8.0


@pytest.mark.parametrize(
    ("mapping", "problem"),
    [
        (((0.0, 0.1), (1.0, 1.0)), "begins at"),
        (((0.0, 0.0), (0.9, 1.0)), "begins at"),
        (((0.0, 0.0), (0.5, 0.6), (0.5, 0.7), (1.0, 1.0)), "ascend"),
        (((0.0, 0.0), (0.5, 0.4), (1.0, 1.0)), "ever less steeply"),
        (((0.0, 0.0), (0.5, 1.1), (1.0, 1.0)), "ever less steeply"),
    ],
)
def test_a_mapping_that_is_none_is_refused(mapping: tuple[tuple[float, float], ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Interference(mapping)


def test_the_mapping_of_nanoflow_is_whole() -> None:
    assert [share for share, _ in NANOFLOW] == pytest.approx([number / 10 for number in range(11)])
    assert all(before[1] < after[1] for before, after in pairwise(NANOFLOW))


@given(FEATURES, st.integers(2, 20_000))
def test_a_decode_costs_the_difference(features: BatchFeatures, context: int) -> None:
    after = copy(features)
    after.add_decode(context)
    cost = OVERLAPPING.decode_cost_ms(features, context)
    assert cost >= 0
    assert OVERLAPPING.predict_ms(features) + cost == pytest.approx(OVERLAPPING.predict_ms(after))


@given(FEATURES, st.integers(1, 8192), st.integers(0, 8192))
def test_a_chunk_costs_the_difference(features: BatchFeatures, tokens: int, context: int) -> None:
    after = copy(features)
    after.add_prefill(tokens, context)
    cost = OVERLAPPING.prefill_cost_ms(features, tokens, context)
    assert OVERLAPPING.predict_ms(features) + cost == pytest.approx(OVERLAPPING.predict_ms(after))
    assert cost <= OVERLAPPING.prefill_cost_ms(features, tokens + 1, context) + 1e-9


@given(FEATURES)
def test_it_is_never_slower_than_adding_nor_faster_than_its_memory(features: BatchFeatures) -> None:
    overlapped, added = OVERLAPPING.predict_ms(features), ADDING.predict_ms(features)
    assert overlapped <= added * (1 + 1e-9) and overlapped >= added / 1.2 - 1e-9
    if not features.is_empty:
        assert overlapped >= ADDING.weights_ms + features.decode_kv_tokens * ADDING.ms_per_kv_token


def test_all_reduces_are_added() -> None:
    """They wait for what was computed, whatever is read."""
    sharing = roofline("llama3.1-8b", "a100-80g", 2)
    rates = replace(sharing.rates, link_bytes_per_ms=(sharing.rates.link_bytes_per_ms or 0.0) / 2)
    batch = make_shape([512], [8_000] * 50)
    slower_ms = OverlappingLatencyModel(replace(sharing, rates=rates)).predict_ms(batch)
    assert slower_ms - OverlappingLatencyModel(sharing).predict_ms(batch) == pytest.approx(
        562 * sharing.ms_per_token_link
    )


def test_prompts_read_and_write_too() -> None:
    """Beside so much KV a short prompt computes less than all reads; then the step takes what all traffic takes."""
    batch = make_shape([64], [20_000] * 64)
    traffic_ms = ADDING.weights_ms + ADDING.head_ms + 128 * ADDING.ms_per_token_memory
    traffic_ms += 64 * ADDING.ms_per_prefill_token_memory + batch.decode_kv_tokens * ADDING.ms_per_kv_token
    assert OVERLAPPING.predict_ms(batch) == pytest.approx(traffic_ms + ADDING.overhead_ms(1, 64))


def test_a_phase_alone_gains_nothing() -> None:
    for batch in (make_shape([2048]), make_shape([], [8_000] * 50)):
        assert OVERLAPPING.predict_ms(batch) == pytest.approx(ADDING.predict_ms(batch), rel=1e-3)
    mixed = make_shape([512], [8_000] * 50)
    assert ADDING.predict_ms(mixed) / OVERLAPPING.predict_ms(mixed) > 1.15
