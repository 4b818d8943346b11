"""Who comes back from the host beside a step rather than before it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.replica.returning import split_returning
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.view import no_queue
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from tests.shared.scheduling.factories import UNBOUNDED, make_decode, make_request, make_table, step_state

SLOTS = st.integers(0, 5)


def decode(request_id: str, kind: Kind, num_missing_slots: int | None = None) -> Request:
    """``num_missing_slots``: of one that is paused, else None."""
    request = make_decode(request_id, kind)
    if num_missing_slots is not None:
        request.num_kept_blocks, request.num_missing_slots = 0, num_missing_slots
    return request


def split(
    held: list[Request], num_entries: int, latency_ms: float, swap_ms: float, spare_ms: float = math.inf
) -> tuple[list[str], list[str]]:
    """Of a step with the first ``num_entries`` of them: who runs, and who comes back beside it."""
    entries = [ScheduledRequest(each.request_id, each.kind, 1) for each in held[:num_entries]]
    schedule = Schedule(entries, ["lost"], latency_ms, num_dropped=3, spare_ms=spare_ms)
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


@pytest.mark.parametrize(
    ("kind", "spare_ms", "beside"),
    [(Kind.ONLINE, 4.0, False), (Kind.ONLINE, 3.9, True), (Kind.ONLINE, -1.0, True), (Kind.OFFLINE, -1.0, False)],
)
def test_an_online_request_waits_for_copies_no_longer_than_the_budget_leaves(
    kind: Kind, spare_ms: float, beside: bool
) -> None:
    """40 slots take 4 ms, which costs the one other less than a step of 16 ms costs those that come back."""
    held = [decode("other", kind), decode("off", Kind.OFFLINE, 40)]
    assert split(held, 2, 16.0, 0.1, spare_ms)[1] == (["off"] if beside else [])


@pytest.mark.parametrize(("packing", "policy"), [("two-phase", Policy(60.0)), ("deadline", UNBOUNDED)])
@pytest.mark.parametrize("prompt", [60, 400])
def test_what_a_packing_leaves_of_its_budget_is_for_copies(packing: str, policy: Policy, prompt: int) -> None:
    """A prompt of 400 tokens takes all of the 60 ms, one of 60 leaves more than the 4 ms of the copies."""
    online, filling = make_decode("on"), make_request("prompt", Kind.OFFLINE, prompt=prompt, computed=16)
    online.deadline_ms = 60.0
    table, limits = make_table(online, decode("off", Kind.OFFLINE), filling), Limits(16, 1000, 512, 64, 0.1)
    state = step_state(table, limits, policy)
    schedule = packing_named(packing).schedule(state, no_queue)
    assert len(schedule.entries) == 3 and schedule.spare_ms == pytest.approx(60.0 - schedule.latency_ms)
    again = packing_named(packing).reconcile(state, schedule.entries, [])
    assert again.spare_ms == pytest.approx(schedule.spare_ms)
    held = table.get("off")
    assert held is not None
    held.num_kept_blocks, held.num_missing_slots = 0, 40
    _, returning = split_returning(schedule, table, limits)
    assert [each.request_id for each in returning] == (["off"] if prompt == 400 else [])
