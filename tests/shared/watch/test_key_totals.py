"""Totals of keys: sums over sources, by day and month, and the budgets that they use up."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from shared.protocol.access.api_keys import ApiKeyRecord
from shared.protocol.access.key_usage import KeyUsage, UsagePlace
from shared.watch.key_totals import KeyTotals

NOON = datetime(2027, 1, 31, 12, tzinfo=UTC).timestamp()
HOUR_S = 3600.0

places = st.builds(
    UsagePlace,
    st.sampled_from(["2026-12-31", "2027-01-01", "2027-01-31"]),
    st.sampled_from(["alice", "bob"]),
    st.sampled_from(["gateway-a", "gateway-b", "batch_1"]),
)
usages = st.builds(KeyUsage, *[st.integers(0, 1000)] * 4)


@given(st.lists(st.tuples(places, usages), max_size=30))
def test_the_newest_total_of_each_source_counts(told: list[tuple[UsagePlace, KeyUsage]]) -> None:
    totals = KeyTotals()
    for place, usage in told:
        totals.take(place, usage)
    totals.forget_before("2027-01")
    newest = {place: usage for place, usage in told if place.day >= "2027-01"}
    for place, _ in told:
        assert totals.get(place) == newest.get(place, KeyUsage())
    for name in ("alice", "bob"):
        for period in ("2026-12", "2027-01", "2027-01-01", "2027-01-31"):
            wanted = sum((u for p, u in newest.items() if p.name == name and p.day.startswith(period)), KeyUsage())
            assert totals.total(name, period) == wanted


def test_a_budget_is_used_up_until_its_period_is_over() -> None:
    key = ApiKeyRecord("alice", "", "", 0, tokens_per_day=100, tokens_per_month=150)
    totals = KeyTotals()
    totals.take(UsagePlace("2027-01-30", "alice", "gateway-a"), KeyUsage(1, 40, 0, 10))
    totals.take(UsagePlace("2027-01-31", "alice", "gateway-a"), KeyUsage(1, 60, 50, 39))
    totals.take(UsagePlace("2027-01-31", "bob", "gateway-a"), KeyUsage(1, 500, 0, 500))
    assert totals.spent_budget(key, NOON) is None
    totals.take(UsagePlace("2027-01-31", "alice", "batch_1"), KeyUsage(1, 1, 0, 0))
    spent = totals.spent_budget(key, NOON)
    assert spent is not None and (spent.period, spent.limit, spent.left_s) == ("month", 150, 12 * HOUR_S)
    assert "'alice' has used its 150 tokens of this month" in spent.message
    assert totals.spent_budget(key, NOON + 12 * HOUR_S) is None
    of_day = ApiKeyRecord("alice", "", "", 0, tokens_per_day=100)
    day = totals.spent_budget(of_day, NOON)
    assert day is not None and (day.period, day.left_s) == ("day", 12 * HOUR_S)
