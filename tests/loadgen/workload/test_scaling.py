"""Windows, rates, times and lengths."""

from collections import Counter
from itertools import count
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import WorkloadError
from loadgen.workload.scaling import Scaling, TraceReading, cap_context, fit_context
from loadgen.workload.traces import TraceRequest

STEADY = [TraceRequest(index / 10, 100 + index, 10 + index) for index in range(1000)]  # 10 a second for 100 s


def test_window_is_half_open_and_counts_from_its_start() -> None:
    requests = Scaling(start_s=10, duration_s=5).apply(STEADY)
    assert [requests[0].num_prompt_tokens, requests[-1].num_prompt_tokens] == [200, 249]
    assert requests[0].arrival_s == 0.0
    assert requests[-1].arrival_s == pytest.approx(4.9)


def test_qps_samples_t_times_q_at_the_trace_s_own_times() -> None:
    """HyGen, section 5.1."""
    requests = Scaling(duration_s=50, qps=2).apply(STEADY)
    assert len(requests) == 100
    own = {request.num_prompt_tokens: request for request in STEADY}
    assert all(own[request.num_prompt_tokens] == request for request in requests)
    assert [r.arrival_s for r in requests] == sorted(r.arrival_s for r in requests)


def test_what_comes_after_the_window_is_not_read() -> None:
    """Nor need it end: the trace may be read from a pipe."""
    endless = (TraceRequest(index / 10, 1, 1) for index in count())
    assert len(Scaling(start_s=10, duration_s=5).apply(endless)) == 50
    assert next(endless).arrival_s == pytest.approx(15.1)


@pytest.mark.parametrize(
    ("start_s", "duration_s", "options", "note"),
    [
        (0, 100, {}, None),
        (0, 50, {}, None),
        (50, 200, {}, "49.9 s into the window of 200 s, which rates are over"),
        (50, 50, {"time_scale": 4.0}, "12.5 s into the window of 50 s, which rates are over"),
        (50, 200, {"qps": 5.0}, "which rates are over: next to all that --qps 5 asks for comes before that"),
    ],
)
def test_a_trace_that_ends_long_before_the_window_is_told_of(
    start_s: float, duration_s: float, options: dict[str, float], note: str | None
) -> None:
    """Five requests a second were asked for, and twenty came."""
    scaling, reading = Scaling(start_s, duration_s, **options), TraceReading(STEADY)
    requests = scaling.apply(reading)
    assert [(note or "") in each for each in scaling.notes(reading.last_s)] == ([] if note is None else [True])
    if "qps" in options:
        assert sum(each.arrival_s < 50 for each in requests) > 0.95 * 5 * 200


def test_there_is_a_request_at_least_however_low_the_rate() -> None:
    assert len(Scaling(duration_s=50, qps=1e-9).apply(STEADY)) == 1
    assert len(Scaling(duration_s=50, rate_scale=1e-9).apply(STEADY)) == 1


def test_the_seed_decides_the_sample() -> None:
    first, again, other = (Scaling(duration_s=50, qps=2, seed=seed).apply(STEADY) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_replication_keeps_lengths_and_interpolates_times() -> None:
    """OOCO, section 5.1.3."""
    requests = Scaling(duration_s=50, rate_scale=2.5).apply(STEADY)
    assert len(requests) == 1250
    assert set(Counter(request.num_prompt_tokens for request in requests).values()) == {2, 3}
    for request in requests:
        original = STEADY[request.num_prompt_tokens - 100]
        assert original.arrival_s <= request.arrival_s <= original.arrival_s + 0.1 + 1e-9
        assert request.num_output_tokens == original.num_output_tokens
    assert set(STEADY[:500]) <= set(requests), "those of the trace keep their times"
    assert [each.arrival_s for each in requests] == sorted(each.arrival_s for each in requests)


def test_replicas_of_the_last_request_come_before_the_end() -> None:
    times_s = [each.arrival_s for each in Scaling(duration_s=80, rate_scale=400).apply([TraceRequest(20.0, 1, 1)])]
    assert len(times_s) == 400 and times_s[0] == 20.0 and times_s[-1] < 80.0
    assert fmean(times_s) == pytest.approx(50, abs=4)


def test_qps_above_the_trace_s_own_replicates() -> None:
    assert len(Scaling(duration_s=50, qps=25).apply(STEADY)) == 1250


def test_replicas_share_blocks_among_themselves_only() -> None:
    trace = [TraceRequest(0.0, 600, 1, (1, 2)), TraceRequest(1.0, 600, 1, (1, 3))]
    requests = Scaling(duration_s=2, rate_scale=2).apply(trace)
    heads = Counter(request.block_ids[0] for request in requests)
    assert sorted(heads.values()) == [2, 2]
    requests = Scaling(duration_s=2, rate_scale=3).apply(trace)
    assert sorted(Counter(each for request in requests for each in request.block_ids).values()) == [1] * 6 + [2] * 3
    assert {1, 2, 3} <= {each for request in requests for each in request.block_ids}, "the trace's own"


def test_time_scale_compresses_the_window() -> None:
    requests = Scaling(duration_s=5, time_scale=4).apply(STEADY)
    assert len(requests) == 200
    assert requests[4].arrival_s == pytest.approx(0.1)
    assert max(request.arrival_s for request in requests) < 5


def test_length_scale_keeps_one_token_at_least_and_scales_blocks() -> None:
    (request,) = Scaling(length_scale=0.01).apply([TraceRequest(0.0, 1024, 3, (1, 2))])
    assert (request.num_prompt_tokens, request.num_output_tokens, request.block_tokens) == (10, 1, 5)
    (request,) = Scaling(length_scale=0.0001).apply([TraceRequest(0.0, 1024, 3, (1, 2))])
    assert (request.num_prompt_tokens, request.num_output_tokens, request.block_tokens) == (1, 1, 1)
    (request,) = Scaling(length_scale=1.5).apply([TraceRequest(0.0, 100, 30, (1, 2), 64)])
    assert (request.num_prompt_tokens, request.num_output_tokens, request.block_tokens) == (150, 45, 96)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(2, 4096))
def test_what_fits_the_context_fits(prompt: int, output: int, max_context: int) -> None:
    kept_prompt, kept_output = fit_context(prompt, output, max_context)
    assert 1 <= kept_prompt <= prompt
    assert 1 <= kept_output <= output
    assert kept_prompt + kept_output <= max_context
    if prompt + output <= max_context:
        assert (kept_prompt, kept_output) == (prompt, output)


@pytest.mark.parametrize(
    ("prompt", "output", "kept"),
    [(950, 100, (900, 100)), (100, 950, (100, 500)), (900, 900, (500, 500)), (100, 900, (100, 900))],
)
def test_an_answer_has_half_the_context_at_most_and_the_prompt_the_rest(
    prompt: int, output: int, kept: tuple[int, int]
) -> None:
    assert fit_context(prompt, output, 1000) == kept


def test_no_context_caps_nothing() -> None:
    assert cap_context(STEADY, None) == STEADY
    assert cap_context([TraceRequest(0.0, 900, 900)], 1000) == [TraceRequest(0.0, 500, 500)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"qps": 0.0}, "--qps must be above 0"),
        ({"duration_s": -1.0}, "--duration must be above 0"),
        ({"time_scale": float("nan")}, "--time-scale must be above 0"),
        ({"length_scale": float("inf")}, "--length-scale must be above 0"),
        ({"start_s": -5.0}, "--start must not be negative"),
        ({"start_s": float("inf")}, "--start must not be negative"),
        ({"rate_scale": -1.0}, "--rate-scale must be above 0"),
        ({"length_scale": 1e308}, r"--length-scale must be above 0 and no more than 1e\+12, not 1e\+308"),
        ({"qps": 1.0, "rate_scale": 1.0}, "--qps and --rate-scale"),
    ],
)
def test_bad_scaling_is_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Scaling(**options)  # type: ignore[arg-type]


def test_an_empty_window_is_an_error() -> None:
    with pytest.raises(WorkloadError, match="no request in the 60 s from 5000 s"):
        Scaling(start_s=5000).apply(STEADY)


@pytest.mark.parametrize("options", [{"qps": 1e6}, {"qps": 1e12, "duration_s": 1e12}, {"rate_scale": 1e12}])
def test_a_rate_of_more_requests_than_memory_holds_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(WorkloadError, match=r"the rate asks for .* requests: 1e\+07 are the most"):
        Scaling(**options).apply(STEADY)
