"""A queue that grows as long as requests come, and ones that do not."""

import pytest

from loadgen.client.records import RequestRecord
from loadgen.report.overload import overload

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
    assert overload(records[:10], 0.0, WINDOW_S) is None and overload([], 0.0, WINDOW_S) is None
