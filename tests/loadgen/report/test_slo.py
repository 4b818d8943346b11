"""SLO expressions and their judgement."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.client.records import RequestRecord
from loadgen.errors import SloError
from loadgen.report.metrics import SHARES, LatencySamples, online_report
from loadgen.report.report import OnlineReport, SloReport
from loadgen.report.slo import parse_slo, parse_slos


@pytest.mark.parametrize(
    ("expr", "metric", "statistic", "limit", "relative", "strict"),
    [
        ("ttft_p99<=800ms", "ttft_ms", "p99", 800, False, False),
        ("tbt_mean<=1.05x", "tbt_ms", "mean", 1.05, True, False),
        ("tbt_mean <= 105%", "tbt_ms", "mean", 1.05, True, False),
        ("TPOT_p50 < 0.05 s", "tpot_ms", "p50", 50, False, True),
        ("itl_median≤250us", "tbt_ms", "p50", 0.25, False, False),
        ("normalized_latency_p90<=.1s", "normalized_latency_ms", "p90", 100, False, False),
        ("online.ttft_ms.mean<=2s", "ttft_ms", "mean", 2000, False, False),
    ],
)
def test_as_people_say_them(expr: str, metric: str, statistic: str, limit: float, relative: bool, strict: bool) -> None:
    slo = parse_slo(expr)
    assert (slo.metric, slo.statistic, slo.relative, slo.strict) == (metric, statistic, relative, strict)
    assert slo.limit == pytest.approx(limit)
    assert slo.expr == expr


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        ("speed_p99<=3ms", "unknown metric 'speed'; known: ttft, tbt, itl, tpot, normalized_latency"),
        ("ttft_p95<=3ms", "unknown statistic 'p95'; known: mean, avg, p50, median, p90, p99"),
        ("ttft_p99<=3", "the bound needs a unit"),
        ("ttft_p99<=3 parsecs", "the bound needs a unit"),
        ("ttft<=3ms", "is not understood: write"),
        ("ttft_p99>=3ms", "is not understood: write"),
        ("ttft_p99<=-3ms", "is not understood: write"),
        ("", "is not understood: write"),
    ],
)
def test_errors_say_what_to_write(expr: str, message: str) -> None:
    with pytest.raises(SloError) as caught:
        parse_slo(expr)
    assert message in str(caught.value)


def records(*ttfts_s: float, failed: int = 0) -> list[RequestRecord]:
    good = [RequestRecord(0.0, 0.0, [ttft_s, ttft_s + 0.01], ttft_s + 0.01) for ttft_s in ttfts_s]
    return good + [RequestRecord(0.0, 0.0, [], 0.1, error="503: full") for _ in range(failed)]


def judged(expr: str, made: list[RequestRecord], baseline: OnlineReport | None = None) -> SloReport:
    return parse_slo(expr).judge(online_report(made, 0, 1), LatencySamples.of(made), baseline)


def test_judgement_against_milliseconds() -> None:
    slo = judged("ttft_mean<=200.1ms", records(0.1, 0.2, 0.3))
    assert slo.met
    assert slo.value == pytest.approx(200)
    assert slo.attainment == pytest.approx(2 / 3)


def test_a_figure_that_is_the_bound_itself() -> None:
    made = records(0.125, 0.25, 0.25, 0.5)
    at_most, below = judged("ttft_p50<=250ms", made), judged("ttft_p50<250ms", made)
    assert (at_most.value, at_most.met, at_most.attainment) == (250.0, True, 0.75)
    assert (below.value, below.met, below.attainment) == (250.0, False, 0.25)
    assert judged("ttft_p50<251ms", made).met and not judged("ttft_p50<=249ms", made).met


def test_several_slos_in_one_text() -> None:
    expected = ["ttft_p99<=800ms", "tbt_mean <= 1.05x", "tpot_p50<50ms"]
    assert [slo.expr for slo in parse_slos(" ttft_p99<=800ms, tbt_mean <= 1.05x;; tpot_p50<50ms,")] == expected
    assert parse_slos(" ") == []
    again = "ttft_p99<=1s,tbt_p99<=1s, ttft_p99<=1s, TTFT_p99 <= 1s, online.itl_ms.p99<=1000ms"
    assert [slo.expr for slo in parse_slos(again)] == ["ttft_p99<=1s", "tbt_p99<=1s"]
    assert len(parse_slos("tbt_p99<=1s, tbt_p99<1s, tbt_p99<=2s, tbt_p99<=1x")) == 4


@pytest.mark.parametrize("metric", ["ttft", "tbt", "tpot", "normalized_latency"])
def test_a_failed_request_is_infinitely_late(metric: str) -> None:
    most = judged(f"{metric}_p99<=1s", records(0.1, 0.2, 0.3, failed=17))
    assert (most.value, most.met, most.attainment) == (math.inf, False, pytest.approx(3 / 20))
    assert not judged(f"{metric}_mean<=1s", records(*[0.1] * 99, failed=1)).met
    few = records(*[number / 1000 for number in range(1, 996)], failed=5)
    assert judged(f"{metric}_p99<=1s", few).met and judged(f"{metric}_p99<=1s", few).attainment == pytest.approx(0.995)
    assert not judged(f"{metric}_p99<=1s", few[:-10] + few[-5:] * 3).met


@example(2, 1, "p50")
@given(st.integers(1, 60), st.integers(0, 60), st.sampled_from(list(SHARES)))
def test_percentiles_are_numpy_s_with_infinite_samples(num_answered: int, num_failed: int, statistic: str) -> None:
    made = records(*[number / 1000 for number in range(num_answered)], failed=num_failed)
    samples = [1.0 * number for number in range(num_answered)] + [1e9] * num_failed
    expected = float(np.quantile(samples, SHARES[statistic]))
    value = judged(f"ttft_{statistic}<=1s", made).value
    assert value == pytest.approx(math.inf if expected > num_answered - 0.99 else expected, abs=1e-6)


def test_judgement_against_the_baseline() -> None:
    slo = judged("ttft_p99<=1.4x", records(0.3), online_report(records(0.2), 0, 1))
    assert not slo.met
    assert slo.bound == pytest.approx(280)
    alone = judged("ttft_p99<=1.4x", records(0.3))
    assert (alone.met, alone.bound, alone.attainment) == (False, None, None)


def test_nothing_measured_is_not_met() -> None:
    for made in ([], records(failed=3)):
        slo = judged("ttft_p99<=800ms", made)
        assert (slo.met, slo.value) == (False, None)
