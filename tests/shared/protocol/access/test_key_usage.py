"""What keys have used, and the days and months that it is counted by."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.protocol.access.key_usage import (
    KeyUsage,
    UsagePlace,
    day_of,
    key_name_of,
    left_of_day_s,
    left_of_month_s,
    month_of,
)

COUNTS = st.tuples(*[st.integers(-1000, 1000)] * 4)
PARTS = st.from_regex(r"[a-z0-9_-]{1,8}", fullmatch=True)


@pytest.fixture(params=["UTC", "Pacific/Auckland", "America/Los_Angeles"])
def zone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@given(COUNTS, COUNTS, st.integers(-3, 3))
def test_each_count_is_added_to_its_own(one: tuple[int, ...], other: tuple[int, ...], times: int) -> None:
    left, right = KeyUsage(*one), KeyUsage(*other)
    assert left.plus(right, times) == KeyUsage(*(a + times * b for a, b in zip(one, other, strict=True)))
    assert left + right == left.plus(right) and left + right - right == left
    assert left.total_tokens == left.input_tokens + left.output_tokens


@given(PARTS, PARTS, PARTS | st.just("batch_1"), PARTS | st.just(""))
def test_a_place_is_read_back_from_its_key(day: str, name: str, source: str, model: str) -> None:
    """One without a model, of a version that had one, too."""
    place = UsagePlace(day, name, source, model)
    assert UsagePlace.of(place.key) == place
    assert place.key.count(".") == (3 if model else 2)
    assert place.is_batch is source.startswith("batch_")


@pytest.mark.parametrize("key", ["", "a", "a.b", "a.b.c.d.e"])
def test_a_key_of_another_form_is_no_place(key: str) -> None:
    assert UsagePlace.of(key) is None


@pytest.mark.parametrize(("client_id", "expected"), [("name-alice", "alice"), ("key-1f", None), ("", None)])
def test_a_client_with_a_key_has_its_name(client_id: str, expected: str | None) -> None:
    assert key_name_of(client_id) == expected


def test_days_and_months_end_by_utc_wherever_the_machine_is(zone: None) -> None:
    """Every five hours of two years, one of them a leap year."""
    now, end = datetime(2027, 1, 30, 0, 0, 30, tzinfo=UTC), datetime(2029, 1, 3, tzinfo=UTC)
    while now < end:
        tomorrow = datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1)
        year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
        assert day_of(now.timestamp()) == f"{now:%Y-%m-%d}" and month_of(day_of(now.timestamp())) == f"{now:%Y-%m}"
        assert left_of_day_s(now.timestamp()) == (tomorrow - now).total_seconds()
        assert left_of_month_s(now.timestamp()) == (datetime(year, month, 1, tzinfo=UTC) - now).total_seconds()
        now += timedelta(hours=5)
