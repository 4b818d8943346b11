"""SLO expressions and their judgement."""

import pytest

from loadgen.client.records import RequestRecord
from loadgen.errors import SloError
from loadgen.report.metrics import LatencySamples, online_report
from loadgen.report.slo import parse_slo


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


def test_judgement_against_milliseconds_counts_failures_as_missed() -> None:
    made = records(0.1, 0.2, 0.3, failed=1)
    slo = parse_slo("ttft_mean<=200.1ms").judge(online_report(made, 0, 1), LatencySamples.of(made), None)
    assert slo.met
    assert slo.value == pytest.approx(200)
    assert slo.attainment == pytest.approx(2 / 4)


def test_judgement_against_the_baseline() -> None:
    made, base = records(0.3), online_report(records(0.2), 0, 1)
    judged = parse_slo("ttft_p99<=1.4x").judge(online_report(made, 0, 1), LatencySamples.of(made), base)
    assert not judged.met
    assert judged.bound == pytest.approx(280)
    alone = parse_slo("ttft_p99<=1.4x").judge(online_report(made, 0, 1), LatencySamples.of(made), None)
    assert (alone.met, alone.bound, alone.attainment) == (False, None, None)


def test_nothing_measured_is_not_met() -> None:
    slo = parse_slo("ttft_p99<=800ms").judge(online_report([], 0, 1), LatencySamples.of([]), None)
    assert (slo.met, slo.value) == (False, None)
