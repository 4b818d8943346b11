"""What is said to be lost is lost in the end, and what is far too slow is said to be lost early."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.records import RequestRecord
from loadgen.report.metrics import online_report
from loadgen.report.slo import parse_slo
from loadgen.workload.traces import TraceRequest
from services.profiler.capacity.lost_slos import LostSlos, most_samples

EXPRESSIONS = [
    f"{metric}_{statistic}{bound}"
    for metric, bound in (("ttft", "<=2s"), ("tbt", "<=1s"), ("tpot", "<1s"), ("normalized_latency", "<=2s"))
    for statistic in ("mean", "p50", "p90", "p99")
]
GAPS_S = st.lists(st.sampled_from([0.25, 0.5, 1.0, 1.5, 3.0]), min_size=1, max_size=5)
OUTCOMES = st.lists(st.tuples(st.integers(0, 20), GAPS_S), min_size=1, max_size=25)


def ended(due_s: float, gaps_s: list[float]) -> RequestRecord:
    """A request answered whole; the first gap is its TTFT."""
    times_s = [due_s + sum(gaps_s[: count + 1]) for count in range(len(gaps_s))]
    return RequestRecord(due_s, due_s, times_s, times_s[-1], 10, len(times_s))


def advance(record: RequestRecord, whole: RequestRecord, now_s: float) -> None:
    """To what of it is known by then."""
    record.token_times_s[:] = [time_s for time_s in whole.token_times_s if time_s <= now_s]
    if whole.finished_s is not None and whole.finished_s <= now_s:
        record.finished_s, record.output_tokens = whole.finished_s, whole.output_tokens


def requests_of(wholes: list[RequestRecord]) -> list[TraceRequest]:
    return [TraceRequest(whole.due_s, 10, whole.num_output_tokens) for whole in wholes]


@given(OUTCOMES, st.sampled_from(EXPRESSIONS), st.integers(0, 3))
def test_nothing_is_lost_that_is_kept_in_the_end(
    outcomes: list[tuple[int, list[float]]], expr: str, first: int
) -> None:
    wholes = [ended(float(due_s), gaps_s) for due_s, gaps_s in sorted(outcomes)]
    slo, records = parse_slo(expr), [RequestRecord(0.0) for _ in range(first)]
    losses = LostSlos([slo], requests_of(wholes), first)
    lost_at_s = None
    for now_s in range(0, 40, 2):
        sent = [whole for whole in wholes if whole.due_s <= now_s]
        records += [replace(whole, token_times_s=[], finished_s=None) for whole in sent[len(records) - first :]]
        for record, whole in zip(records[first:], wholes, strict=False):
            advance(record, whole, now_s)
        if losses.find(records, now_s) is not None:
            lost_at_s = now_s
            break
    report = online_report(wholes, 0.0, 40.0)
    value_ms = slo.value_ms(report)
    is_kept = value_ms is not None and slo.is_met(value_ms, slo.limit)
    assert not (is_kept and lost_at_s is not None)
    if value_ms is not None and slo.statistic == "mean" and not is_kept:
        assert lost_at_s is not None  # all has been seen


def test_who_waits_for_a_first_token_counts() -> None:
    requests = [TraceRequest(float(due_s), 10, 5) for due_s in range(100)]
    losses = LostSlos([parse_slo("ttft_p90<=1s")], requests)
    records = [RequestRecord(float(due_s)) for due_s in range(12)]
    assert losses.find(records, 11.0) is None  # 10 of 100 wait for more than a second: one fewer than it takes
    assert losses.find([*records, RequestRecord(12.0)], 12.5) == parse_slo("ttft_p90<=1s")


@pytest.mark.parametrize(("metric", "most"), [("ttft_ms", 3), ("tpot_ms", 1), ("tbt_ms", 4)])
def test_how_many_samples_there_can_be(metric: str, most: int) -> None:
    assert most_samples(metric, [TraceRequest(0.0, 9, outputs) for outputs in (0, 1, 5)]) == most
