"""Counters that the server's executors tell, read over HTTP, and what was gained between two readings."""

import time

import pytest

from loadgen.client.counters import BUSY_METRIC, Reading, gained, idle_share, parse_counter, read_counter
from loadgen.client.openai_client import OpenAIClient
from tests.loadgen.openai_server import OpenAIServer


async def test_a_reading_is_of_a_time_while_it_was_asked_for(server: OpenAIServer) -> None:
    server.busy_per_s = 0.25
    async with OpenAIClient(server.url, 10) as client:
        begun_s = time.perf_counter()
        before = await read_counter(client, BUSY_METRIC)
        between_s = time.perf_counter()
        after = await read_counter(client, BUSY_METRIC)
        assert await read_counter(client, "some_other_metric") is None
    assert before is not None and after is not None
    assert begun_s < before.time_s < between_s < after.time_s < time.perf_counter()
    assert before.values.keys() == after.values.keys() and len(before.values) > 0


async def test_a_server_without_metrics_tells_nothing() -> None:
    async with OpenAIClient("http://127.0.0.1:1/v1", 1) as client:
        assert await read_counter(client, BUSY_METRIC) is None


def test_a_counter_without_labels_is_one() -> None:
    page = "# HELP busy seconds\nbusy 1.5\nbusy_created 9\nother 2\n"
    assert parse_counter(page, "busy", 3.0) == Reading(3.0, {"": 1.5})


BEFORE = Reading(10.0, {"a": 1.0, "b": 2.0})


@pytest.mark.parametrize(
    ("before", "after", "gains"),
    [
        (BEFORE, Reading(11.0, {"a": 1.5, "b": 2.0}), [0.5, 0.0]),
        (BEFORE, Reading(11.0, {"a": 1.5, "b": 1.0}), None),  # it was restarted
        (BEFORE, Reading(11.0, {"a": 1.5}), None),
        (BEFORE, Reading(11.0, {"a": 1.5, "b": 2.0, "c": 0.0}), None),
        (BEFORE, BEFORE, None),
        (BEFORE, Reading(9.0, {"a": 1.5, "b": 2.5}), None),
        (BEFORE, None, None),
        (None, BEFORE, None),
        (None, None, None),
    ],
)
def test_what_was_gained_by_the_same_executors(
    before: Reading | None, after: Reading | None, gains: list[float] | None
) -> None:
    assert gained(before, after) == gains
    assert (idle_share(before, after) is None) == (gains is None)


@pytest.mark.parametrize(("busy_s", "share"), [(0.0, 1.0), (0.5, 0.75), (2.0, 0.0), (3.0, 0.0)])
def test_the_idle_share_is_nothing_at_least(busy_s: float, share: float) -> None:
    """A step's end may add what it took before the first reading."""
    assert idle_share(Reading(10.0, {"a": 1.0}), Reading(12.0, {"a": 1.0 + busy_s})) == share
    halves = idle_share(BEFORE, Reading(12.0, {"a": 1.0 + busy_s, "b": 2.0}))
    assert halves == 1 - busy_s / 4, "the mean of both"
