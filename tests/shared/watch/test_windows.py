"""What was told within the last seconds, against all that was ever told."""

from math import floor

from hypothesis import example, given
from hypothesis import strategies as st

from shared.latency.histogram import LatencyHistogram
from shared.watch.windows import RateWindow, Rolling

GAPS_S = st.floats(0, 8)
LONGER_S = GAPS_S | st.sampled_from([5.0, 10.0, 12.0])  # as long as a span, and longer


@given(st.lists(st.tuples(GAPS_S, st.lists(st.floats(1, 1000), max_size=3)), max_size=25), GAPS_S)
def test_reports_count_by_the_second_until_they_are_old(told: list[tuple[float, list[float]]], after_s: float) -> None:
    rolling, now_s = Rolling(10.0, LatencyHistogram), 100.0
    seen: list[tuple[float, list[float]]] = []
    for gap_s, samples in told:
        now_s += gap_s
        report = LatencyHistogram()
        for sample in samples:
            report.add(sample)
        rolling.add(now_s, report)
        seen.append((now_s, samples))
    now_s += after_s
    expected = LatencyHistogram()
    for at_s, samples in seen:
        for sample in samples if floor(at_s) > now_s - 10.0 else ():
            expected.add(sample)
    total = rolling.total(now_s)
    assert (total.num_samples, total.buckets) == (expected.num_samples, expected.buckets)


def test_those_who_tell_often_take_no_more_room() -> None:
    rolling = Rolling(10.0, LatencyHistogram)
    for number in range(1000):
        report = LatencyHistogram()
        report.add(5.0)
        rolling.add(number / 20, report)
        assert len(rolling._seconds) <= 11
    assert rolling.total(1000 / 20).num_samples == 9 * 20


def test_what_is_asked_for_is_nobody_elses() -> None:
    rolling, report = Rolling(10.0, LatencyHistogram), LatencyHistogram()
    report.add(5.0)
    rolling.add(1.0, report)
    rolling.total(1.5).add(7.0)
    report.add(9.0)
    assert rolling.total(1.5).num_samples == 1


@given(st.lists(st.tuples(LONGER_S, st.integers(-3, 20)), max_size=25), st.none() | LONGER_S)
@example([(0.0, 1), (1.0, 1), (10.0, 1)], None)
@example([(0.0, 1), (1.0, 1)], 12.0)
def test_a_rate_is_that_since_the_last_that_was_seen_a_span_ago(
    told: list[tuple[float, int]], after_s: float | None
) -> None:
    """Or, where nothing is that old, since the first. A smaller total is that of something new. What has not grown
    since it was seen last has not."""
    window, now_s, total = RateWindow(10.0), 100.0, 50
    seen: list[tuple[float, int]] = []
    assert window.per_s() is None
    for gap_s, growth in told:
        now_s, total = now_s + gap_s, max(0, total + growth)
        seen = [(now_s, total)] if seen and total < seen[-1][1] else [*seen, (now_s, total)]
        window.add(now_s, total)
        until_s = now_s + (after_s or 0.0)
        old = [each for each in seen if each[0] <= until_s - 10.0]
        first_s, first = old[-1] if old else seen[0]
        is_known = now_s > seen[0][0]
        rate = window.per_s() if after_s is None else window.per_s(until_s)
        assert rate == ((total - first) / (until_s - first_s) if is_known else None)
