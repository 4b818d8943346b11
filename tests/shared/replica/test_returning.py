"""Who comes back from the host beside a step rather than before it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.replica.returning import split_returning
from shared.scheduling.limits import Limits
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from tests.shared.scheduling.factories import make_decode, make_table

SLOTS = st.integers(0, 5)


def decode(request_id: str, kind: Kind, num_missing_slots: int | None = None) -> Request:
    """``num_missing_slots``: of one that is paused, else None."""
    request = make_decode(request_id, kind)
    if num_missing_slots is not None:
        request.num_kept_blocks, request.num_missing_slots = 0, num_missing_slots
    return request


def split(held: list[Request], num_entries: int, latency_ms: float, swap_ms: float) -> tuple[list[str], list[str]]:
    """Of a step with the first ``num_entries`` of them: who runs, and who comes back beside it."""
    entries = [ScheduledRequest(each.request_id, each.kind, 1) for each in held[:num_entries]]
    schedule = Schedule(entries, ["lost"], latency_ms, num_dropped=3)
    limits = Limits(16, 1000, 512, 64, swap_ms_per_slot=swap_ms)
    runs, returning = split_returning(schedule, make_table(*held), limits)
    assert (runs.preempted, runs.num_dropped, runs.latency_ms) == (["lost"], 3, latency_ms)
    assert [each for each in entries if each in runs.entries] == runs.entries, "in their order"
    return [each.request_id for each in runs.entries], [each.request_id for each in returning]


@given(st.integers(0, 4), st.lists(st.none() | SLOTS, max_size=5), SLOTS, st.integers(0, 20), st.integers(0, 3))
def test_it_is_the_choice_by_which_requests_lose_less_time(
    num_online: int, paused: list[int | None], num_not_scheduled: int, latency_ms: int, swap_ms: int
) -> None:
    """Waiting for the copies costs each of the others as long as these take, all of them; being left out costs each of
    those that come back a step."""
    offline = [decode(f"off-{number}", Kind.OFFLINE, slots) for number, slots in enumerate(paused)]
    held = [*(decode(f"on-{number}", Kind.ONLINE) for number in range(num_online)), *offline]
    num_entries = max(0, len(held) - num_not_scheduled)
    scheduled = {each.request_id: each.num_missing_slots for each in held[:num_entries]}
    come_back = [request_id for request_id, slots in scheduled.items() if slots]
    others = [request_id for request_id in scheduled if request_id not in come_back]
    copies_ms = sum(swap_ms * scheduled[request_id] for request_id in come_back)
    waited_ms, left_out_ms = sum(copies_ms for _ in others), sum(latency_ms for _ in come_back)
    expected = (others, come_back) if waited_ms > left_out_ms else (list(scheduled), [])
    assert split(held, num_entries, latency_ms, swap_ms) == expected


@pytest.mark.parametrize(("num_others", "beside"), [(0, False), (1, False), (4, False), (5, True)])
def test_where_many_others_run_one_comes_back_beside_them(num_others: int, beside: bool) -> None:
    """40 slots take 4 ms, and a step 16 ms. One of the others was paused, too, and lacks nothing any more."""
    others = [decode(f"on-{number}", Kind.ONLINE) for number in range(num_others - 1)]
    others += [decode("has all", Kind.OFFLINE, 0)] if num_others else []
    names = [each.request_id for each in others]
    found = split([*others, decode("off", Kind.OFFLINE, 40)], num_others + 1, 16.0, 0.1)
    assert found == ((names, ["off"]) if beside else ([*names, "off"], []))
