"""The busiest part of a trace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.peak import busiest_start_s
from loadgen.workload.traces import TraceRequest

TRACES = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=40).map(
    lambda rows: [TraceRequest(time / 4, prompt, output) for time, prompt, output in sorted(rows)]
)


def tokens_from(requests: list[TraceRequest], start_s: float, length_s: float) -> int:
    inside = [each for each in requests if start_s <= each.arrival_s < start_s + length_s]
    return sum(each.num_prompt_tokens + each.num_output_tokens for each in inside)


@given(TRACES, st.sampled_from([0.25, 1.0, 7.5, 100.0]))
def test_no_other_part_has_more_tokens(requests: list[TraceRequest], length_s: float) -> None:
    starts = [each.arrival_s for each in requests]
    most = max(tokens_from(requests, start_s, length_s) for start_s in starts)
    assert tokens_from(requests, busiest_start_s(requests, length_s), length_s) == most


def test_long_prompts_outweigh_many_requests_and_the_earliest_of_equals_wins() -> None:
    many = [TraceRequest(index / 10, 10, 10) for index in range(50)]
    long = [TraceRequest(20.0, 3000, 100), TraceRequest(40.0, 3000, 100)]
    assert busiest_start_s([*many, *long], 10.0) == 20.0


def test_a_trace_without_requests_has_none() -> None:
    with pytest.raises(ValueError, match="without requests"):
        busiest_start_s([], 10.0)
