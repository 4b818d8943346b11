"""The histogram against all of its samples."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.report.metrics import percentile
from shared.latency.histogram import BUCKET_WIDTH, LatencyHistogram
from shared.protocol.codec import decode, encode

LATENCIES = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=200)


def histogram_of(samples: list[float]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for sample in samples:
        histogram.add(sample)
    return histogram


@given(LATENCIES, st.floats(0, 1))
def test_quantiles_are_right_to_the_width_of_a_bucket_and_the_mean_is_exact(samples: list[float], share: float) -> None:
    histogram = histogram_of(samples)
    assert histogram.quantile_ms(share) == pytest.approx(percentile(sorted(samples), share), rel=BUCKET_WIDTH - 1)
    assert histogram.mean_ms() == pytest.approx(math.fsum(samples) / len(samples))


@given(LATENCIES, LATENCIES)
def test_merging_is_counting_both(first: list[float], second: list[float]) -> None:
    merged, other = histogram_of(first), histogram_of(second)
    merged.merge(other)
    assert merged.buckets == histogram_of(first + second).buckets
    assert merged.num_samples == len(first) + len(second)
    assert other == histogram_of(second)


@given(LATENCIES)
def test_it_survives_the_bus(samples: list[float]) -> None:
    histogram = histogram_of(samples)
    assert decode(encode(histogram), LatencyHistogram) == histogram


def test_samples_above_a_bound_are_counted() -> None:
    histogram = histogram_of([10.0] * 7 + [50.0] * 3)
    assert [histogram.num_above(bound) for bound in (5.0, 20.0, 60.0)] == [10, 3, 0]


def test_without_samples_nothing_is_said() -> None:
    histogram = LatencyHistogram()
    assert histogram.mean_ms() is None and histogram.quantile_ms(0.99) is None
    histogram.add(0.0)
    assert histogram.num_samples == 1 and histogram.mean_ms() == 0.0
