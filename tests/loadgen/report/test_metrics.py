"""Percentiles against numpy, and each latency from a record made by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.counters import BUSY_METRIC, Reading, idle_share, parse_counter
from loadgen.client.records import RequestRecord
from loadgen.report.metrics import (
    LatencySamples,
    harvest,
    interference,
    online_report,
    percentile,
    summarize,
    under_way_share,
)
from loadgen.report.report import Ratios, Summary
from tests.loadgen.report.reports import offline, record

finite = st.floats(min_value=-1e9, max_value=1e9, allow_nan=False)


@given(st.lists(finite, min_size=1, max_size=200), st.floats(0, 1))
def test_percentile_is_numpy_s(samples: list[float], share: float) -> None:
    expected = float(np.quantile(samples, share))
    assert percentile(sorted(samples), share) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(st.lists(finite, min_size=1, max_size=200))
def test_summary_is_numpy_s(samples: list[float]) -> None:
    summary = summarize(samples)
    assert summary is not None
    assert summary.mean == pytest.approx(float(np.mean(samples)), rel=1e-9, abs=1e-3)
    assert summary.p99 == pytest.approx(float(np.percentile(samples, 99)), rel=1e-9, abs=1e-6)


def test_no_samples_no_summary() -> None:
    assert summarize([]) is None


def test_latencies_of_one_request() -> None:
    samples = LatencySamples.of([record(10.0, 10.5, 10.6, 10.8, output_tokens=5)])
    assert samples.ttft_ms == pytest.approx([500])
    assert samples.tbt_ms == pytest.approx([100, 200])
    assert samples.tpot_ms == pytest.approx([300 / 4])
    assert samples.normalized_latency_ms == pytest.approx([800 / 5])


def test_failed_and_unfinished_requests_give_no_samples() -> None:
    records = [
        record(0.0, 0.1, 0.2, error="500: broken"),
        record(0.0, 0.1, finished_s=None),
        record(0.0, output_tokens=0, prompt_tokens=5),
        record(0.0, 0.3, output_tokens=1, prompt_tokens=7),
    ]
    report = online_report(records, 0.0, 1.0)
    assert (report.requests, report.completed, report.errors, report.unfinished) == (4, 2, 1, 1)
    assert report.ttft_ms is not None
    assert report.ttft_ms.mean == pytest.approx(300)
    assert (report.tbt_ms, report.tpot_ms) == (None, None)
    assert report.input_tokens_per_s == pytest.approx(12)


@pytest.mark.parametrize(("end_s", "elapsed_s"), [(110.0, 10.0), (105.0, 5.0), (104.0, 5.0)])
def test_rates_are_over_the_window_or_until_the_last_answer(end_s: float, elapsed_s: float) -> None:
    """That comes at 105 s, of a window from 100 s on; what fails later adds no time."""
    records = [
        record(100.0, 101.0, 102.0, output_tokens=6, prompt_tokens=30),
        record(101.0, 102.0, 105.0, output_tokens=4, prompt_tokens=10),
        record(102.0, finished_s=120.0, error="500: broken"),
    ]
    report = online_report(records, 100.0, end_s)
    assert report.requests_per_s == pytest.approx(2 / elapsed_s)
    assert report.input_tokens_per_s == pytest.approx(40 / elapsed_s)
    assert report.output_tokens_per_s == pytest.approx(10 / elapsed_s)
    assert report.under_way_share == under_way_share(records, 100.0, end_s)
    records[0].prompt_tokens = None
    assert online_report(records, 100.0, end_s).input_tokens_per_s is None


def test_how_late_requests_were_sent() -> None:
    """Whatever became of them; one that waits for its time to be sent has no lag yet."""
    sent_s = [20.0, 20.003, 20.001, None]
    lag = online_report([record(20.0, sent_s=each, finished_s=None) for each in sent_s], 20.0, 21.0).send_lag_ms
    assert lag is not None and (lag.mean, lag.p50) == pytest.approx((4 / 3, 1.0))


def test_the_share_of_time_with_a_request_under_way() -> None:
    overlapping = [record(1.0, 1.5, 3.0), record(2.0, 2.5, 4.0), record(6.0, 6.5, 7.0)]
    assert under_way_share(overlapping, 0.0, 10.0) == pytest.approx(0.4)
    assert under_way_share(overlapping, 2.5, 6.5) == pytest.approx(0.5)
    unanswered = RequestRecord(8.0, sent_s=8.0)
    assert under_way_share([*overlapping, unanswered, RequestRecord(9.0)], 0.0, 10.0) == pytest.approx(0.6)
    assert under_way_share([], 0.0, 10.0) == 0.0
    assert under_way_share(overlapping, 2.0, 2.0) == 0.0, "of no time"


def test_interference_is_a_ratio_and_null_over_zero() -> None:
    base = online_report([record(0.0, 0.1, 0.1, output_tokens=2)], 0.0, 1.0)
    ours = online_report([record(0.0, 0.2, 0.3, output_tokens=2)], 0.0, 1.0)
    ratios = interference(ours, base)
    assert ratios.ttft_ms.mean == pytest.approx(2)
    assert ratios.normalized_latency_ms.p99 == pytest.approx(3)
    assert ratios.tbt_ms.mean is None
    quick, slower = (online_report([record(0.0, first_s)], 0.0, 1.0) for first_s in (0.0005, 0.001))
    assert interference(slower, quick).ttft_ms.mean == pytest.approx(2), "whatever the unit"


def test_interference_with_what_only_one_run_has() -> None:
    """Requests of one token have neither gaps nor a time per token after the first."""
    short, long = (online_report([record(0.0, *times_s)], 0.0, 1.0) for times_s in ([0.1], [0.1, 0.2]))
    for ours, theirs in ((short, long), (long, short), (short, short)):
        ratios = interference(ours, theirs)
        assert ratios.tbt_ms == ratios.tpot_ms == Ratios(None, None, None, None)
        assert ratios.ttft_ms.p50 == pytest.approx(1)


def test_offline_rates_and_harvest() -> None:
    report = offline(1000, 500)
    assert (report.requests_per_s, report.output_tokens_per_s, report.total_tokens_per_s) == (4.0, 50.0, 150.0)
    assert harvest(report, offline(3000, 1500), 0.5) == pytest.approx(2 / 3)
    assert harvest(offline(None, 200), offline(None, 800), 0.5) == pytest.approx(0.5)
    assert harvest(offline(None, 200), offline(3000, 800), 0.5) == pytest.approx(0.5), "of output alone, as the other"
    assert harvest(offline(2, 1), offline(4, 2), 0.5) == pytest.approx(1.0), "of less than a token a second"
    assert harvest(report, offline(None, None), 0.5) is None
    assert harvest(report, offline(3000, 1500), 0.0) is None


def test_offline_rates_of_a_run_that_took_no_time_and_where_tokens_are_not_told() -> None:
    report = offline(1000, 500, elapsed_s=0.0)
    assert (report.requests_per_s, report.output_tokens_per_s, report.total_tokens_per_s) == (0.0, 0.0, 0.0)
    assert offline(10, 5, elapsed_s=0.5).total_tokens_per_s == 30.0
    partly = offline(1000, None), offline(None, 500), offline(None, None)
    assert [each.total_tokens_per_s for each in partly] == [None] * 3
    assert [each.output_tokens_per_s for each in partly] == [None, 50.0, None]
    assert [each.requests_per_s for each in partly] == [4.0] * 3


def test_idle_share_is_the_mean_over_executors() -> None:
    page = (
        "# TYPE slackwater_executor_busy_seconds_total counter\n"
        'slackwater_executor_busy_seconds_total{{executor="a"}} {a}\n'
        'slackwater_executor_busy_seconds_total{{executor="b"}} {b}\n'
        "slackwater_executor_busy_seconds_total_created 7\n"
    )

    def parse_busy(text: str, time_s: float) -> Reading | None:
        return parse_counter(text, BUSY_METRIC, time_s)

    before, after = parse_busy(page.format(a=1.0, b="5e-1"), 100.0), parse_busy(page.format(a=3.0, b=4.5), 110.0)
    assert idle_share(before, after) == pytest.approx(0.7)
    assert idle_share(after, parse_busy(page.format(a=0.0, b=9.0), 120.0)) is None
    assert idle_share(before, None) is None
    assert parse_busy("up 1\n", 0.0) is None


def test_summary_order() -> None:
    summary = summarize([float(value) for value in range(101)])
    assert summary == Summary(50.0, 50.0, 90.0, 99.0)
    assert not math.isnan(summary.mean)
