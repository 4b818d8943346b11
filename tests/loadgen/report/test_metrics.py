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
from loadgen.report.report import OfflineReport, Summary

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


def record(due_s: float, *times_s: float, **fields: object) -> RequestRecord:
    made = RequestRecord(due_s, sent_s=due_s, token_times_s=list(times_s), finished_s=max((due_s, *times_s)))
    for name, value in fields.items():
        setattr(made, name, value)
    return made


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
        record(0.0, 0.3, output_tokens=1, prompt_tokens=7),
    ]
    report = online_report(records, 0.0, 1.0)
    assert (report.requests, report.completed, report.errors, report.unfinished) == (3, 1, 1, 1)
    assert report.ttft_ms is not None
    assert report.ttft_ms.mean == pytest.approx(300)
    assert (report.tbt_ms, report.tpot_ms) == (None, None)
    assert report.input_tokens_per_s == pytest.approx(7)


def test_the_share_of_time_with_a_request_under_way() -> None:
    overlapping = [record(1.0, 1.5, 3.0), record(2.0, 2.5, 4.0), record(6.0, 6.5, 7.0)]
    assert under_way_share(overlapping, 0.0, 10.0) == pytest.approx(0.4)
    assert under_way_share(overlapping, 2.5, 6.5) == pytest.approx(0.5)
    unanswered = RequestRecord(8.0, sent_s=8.0)
    assert under_way_share([*overlapping, unanswered, RequestRecord(9.0)], 0.0, 10.0) == pytest.approx(0.6)
    assert under_way_share([], 0.0, 10.0) == 0.0


def test_interference_is_a_ratio_and_null_over_zero() -> None:
    base = online_report([record(0.0, 0.1, 0.1, output_tokens=2)], 0.0, 1.0)
    ours = online_report([record(0.0, 0.2, 0.3, output_tokens=2)], 0.0, 1.0)
    ratios = interference(ours, base)
    assert ratios.ttft_ms.mean == pytest.approx(2)
    assert ratios.normalized_latency_ms.p99 == pytest.approx(3)
    assert ratios.tbt_ms.mean is None


def offline(input_tokens: int | None, output_tokens: int | None) -> OfflineReport:
    counts = {"backlog": 100, "completed": 40, "errors": 1, "input_tokens": input_tokens}
    return OfflineReport.counted(mode="batch", output_tokens=output_tokens, elapsed_s=10.0, exhausted=False, **counts)


def test_offline_rates_and_harvest() -> None:
    report = offline(1000, 500)
    assert (report.requests_per_s, report.output_tokens_per_s, report.total_tokens_per_s) == (4.0, 50.0, 150.0)
    assert harvest(report, offline(3000, 1500), 0.5) == pytest.approx(2 / 3)
    assert harvest(offline(None, 200), offline(None, 800), 0.5) == pytest.approx(0.5)
    assert harvest(report, offline(None, None), 0.5) is None
    assert harvest(report, offline(3000, 1500), 0.0) is None


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
