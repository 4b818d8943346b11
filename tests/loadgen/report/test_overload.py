"""A queue that grows as long as requests come, and ones that do not."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.records import RequestRecord
from loadgen.report.metrics import online_report
from loadgen.report.overload import MIN_REQUESTS, overload

WINDOW_S = 100.0


def served(rate: float, capacity: float, num: int, prompt: int = 90, output: int = 10) -> list[RequestRecord]:
    """``rate`` requests a second, one after the other, at most ``capacity`` a second; tokens spread over their time."""
    records, free_s = [], 0.0
    for number in range(num):
        due_s = number / rate
        start_s = max(due_s, free_s)
        free_s = start_s + 1 / capacity
        times_s = [start_s + (index + 1) / capacity / output for index in range(output)]
        records.append(
            RequestRecord(due_s, due_s, times_s, finished_s=times_s[-1], prompt_tokens=prompt, output_tokens=output)
        )
    return records


@pytest.mark.parametrize("excess", [1.2, 1.6, 3.0])
def test_the_factor_is_what_came_over_what_could_be_done(excess: float) -> None:
    records = served(rate=5 * excess, capacity=5, num=int(WINDOW_S * 5 * excess))
    assert overload(records, 0.0, WINDOW_S) == pytest.approx(excess, rel=0.02)
    assert online_report(records, 0.0, WINDOW_S).overload == overload(records, 0.0, WINDOW_S)


@pytest.mark.parametrize("load", [0.3, 0.9, 1.0])
def test_what_is_served_in_time_is_no_overload(load: float) -> None:
    assert overload(served(rate=5 * load, capacity=5, num=int(WINDOW_S * 5 * load)), 0.0, WINDOW_S) is None


def test_a_burst_that_is_over_before_the_end_is_no_overload() -> None:
    burst = served(rate=1000, capacity=5, num=250)
    assert overload([*burst, *served(rate=2, capacity=5, num=200)[120:]], 0.0, WINDOW_S) is None


def test_what_is_not_known_is_not_said() -> None:
    records = served(rate=15, capacity=5, num=1500)
    assert overload(records, 0.0, WINDOW_S) is not None
    records[3].prompt_tokens = None
    assert overload(records, 0.0, WINDOW_S) is None
    records[3].prompt_tokens, records[3].error = 90, "refused"
    assert overload(records, 0.0, WINDOW_S) is None
    assert overload([], 0.0, WINDOW_S) is None


def growing(last_waits_s: Sequence[float], num_last_answered: int, num: int = 20) -> list[RequestRecord]:
    """Requests of 90 prompt and 10 output tokens, one every 5 s, that wait 1 s for their first token, but for the last
    ones; those after ``num_last_answered`` of these get none."""
    records = []
    for number in range(num):
        index = number - num + len(last_waits_s)
        due_s, wait_s = 5.0 * number, last_waits_s[index] if index >= 0 else 1.0
        times_s = [due_s + wait_s + each / 16 for each in range(10)] if index < num_last_answered else []
        records.append(RequestRecord(due_s, due_s, times_s, prompt_tokens=90, output_tokens=len(times_s)))
    return records


def test_the_factor_of_what_is_counted_by_hand() -> None:
    """20 requests, of which the last waits to the end: its prompt came, and was not computed."""
    assert overload(growing([2.0, 2.0, 4.0, 4.0, 3.0], 4), 0.0, 98.0) == (19 * 100 + 90) / (19 * 100)
    assert overload(growing([2.0, 2.0, 4.0, 4.0, 2.0], 4), 0.0, 97.0) is None, "less than three times as long at last"
    assert overload(growing([2.0, 2.0, 4.0, 4.0, 3.0], 4)[1:], 0.0, 98.0) is None, "19 are too few"
    assert overload(growing([2.0, 2.0, 4.0, 4.0, 3.0], 4, num=21), 0.0, 103.0) is None, "one of 21 is less than 5%"
    late = growing([2.0, 2.0, 4.0, 6.0, 3.0], 4)
    assert overload(late, 0.0, 98.0) == (19 * 100 + 90) / (19 * 100), "all but the last have all tokens by then"
    late[18].token_times_s = [96.0, 97.0, 98.0, 99.0]
    assert overload(late, 0.0, 98.0) == (19 * 100 + 90) / (19 * 100 - 3), "three of four events are of 7 of 10 tokens"


def test_a_quarter_is_compared_with_a_quarter() -> None:
    """A single request that was slow among the last: three times as much for five, not for the last four."""
    assert overload(growing([7.0, 2.0, 2.0, 2.0, 2.0], 4), 0.0, 97.0) is not None


def test_a_request_that_comes_just_before_the_end_is_no_overload() -> None:
    """All wait for tenths of a second only, whatever the last ones wait beside the first."""
    records = [RequestRecord(1.0 * due_s, due_s, [due_s + 0.05], prompt_tokens=90) for due_s in range(20)]
    for record in records[15:19]:
        record.token_times_s = [record.due_s + 0.3]
    assert overload(records, 0.0, 19.04) is None
    records[15].token_times_s = [17.0]
    assert overload(records, 0.0, 19.04) is not None


def test_what_comes_at_the_end_of_the_window_or_later_is_not_its_own() -> None:
    records = growing([2.0, 2.0, 4.0, 4.0, 3.0], 4)
    later = [RequestRecord(due_s, due_s, prompt_tokens=1000, output_tokens=0) for due_s in (98.0, 120.0)]
    assert overload([*records, *later], 0.0, 98.0) == overload(records, 0.0, 98.0)


def test_latencies_that_grow_are_no_overload_where_all_are_answered_in_time() -> None:
    """The last tokens of all come after the end; the first ones did not."""
    grown = growing([4.0] * 5, 5)
    for record in grown:
        record.token_times_s[1:] = [150.0]
    assert overload(grown, 0.0, 100.0) is None


def test_a_share_that_always_waits_is_no_overload() -> None:
    """Every request waits 12 s for its first token, so at any time some have none."""
    records = [RequestRecord(1.0 * due_s, due_s, [due_s + 12.0], prompt_tokens=90) for due_s in range(100)]
    assert overload(records, 0.0, WINDOW_S) is None


def test_where_nothing_was_computed_in_the_window_there_is_no_factor() -> None:
    records = [RequestRecord(4.0 * number, None, [101.0 + number**2], prompt_tokens=90) for number in range(20)]
    assert overload(records, 0.0, WINDOW_S) is None


@given(st.floats(0.0, 1e6), st.floats(0.01, 1e3))
def test_whoever_has_no_token_waits_to_the_end_whatever_the_clock_says(start_s: float, gap_s: float) -> None:
    """The last quarter waits for its first token, the first one waits for a hundredth of a gap."""
    num, waits = 4 * MIN_REQUESTS, 3 * MIN_REQUESTS
    records = [RequestRecord(start_s + gap_s * number, prompt_tokens=90) for number in range(num)]
    for record in records[:waits]:
        record.token_times_s = [record.due_s + gap_s / 100]
    end_s = start_s + gap_s * num
    assert overload(records, start_s, end_s) == pytest.approx((num * 90 + waits) / (waits * 91), rel=1e-9)
