"""Whose turn it is, against a slow reader that looks at all accounts anew for each request."""

import sys
from dataclasses import dataclass
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.orders.offline.share import Share
from shared.scheduling.orders.offline.turns import MAX_BATCHES
from shared.scheduling.packed_prompt import pack_tokens
from shared.scheduling.request import OFFLINE, Request

MAX_CLIENTS = 4


@dataclass
class NaiveBatch:
    """Its requests that wait, by their numbers of arrival; what it was charged."""

    client_id: str
    waiting: dict[int, Request]
    charged: float
    precedence: int


def naive_reading(order: FairShare, shares: dict[str, Share], slack_tokens: int) -> list[str]:
    """Of an order whose requests have numbers for lines, first come, first served within a turn."""
    waiting = sorted(order._order.in_order(), key=lambda request: int(request.request_id.partition(".")[2]))
    batches = {
        batch_id: NaiveBatch(client.client_id, {}, batch.charged, batch.precedence)
        for client in order._clients.values()
        for batch_id, batch in client.batches.items()
    }
    for number, request in enumerate(waiting):
        batches[request.request_id.partition(".")[0]].waiting[number] = request
    charged = {client_id: client.charged for client_id, client in order._clients.items()}
    read = []
    while left := {batch_id: batch for batch_id, batch in batches.items() if batch.waiting}:
        lowest = min(charged[batch.client_id] // slack_tokens for batch in left.values())
        due: dict[str, NaiveBatch] = {}
        for client_id in charged:
            own = {batch_id: batch for batch_id, batch in left.items() if batch.client_id == client_id}
            least = min((batch.charged // slack_tokens for batch in own.values()), default=0.0)
            if charged[client_id] // slack_tokens == lowest:
                due |= {key: batch for key, batch in own.items() if batch.charged // slack_tokens == least}
        highest = max(batch.precedence for batch in due.values())
        first = [batch_id for batch_id, batch in due.items() if batch.precedence == highest][:MAX_BATCHES]
        batch_id = min(first, key=lambda batch_id: min(batches[batch_id].waiting))
        batch, share = batches[batch_id], shares[batch_id]
        request = batch.waiting.pop(min(batch.waiting))
        charge = share.charge(request.max_total_tokens)
        batch.charged += charge.of_batch
        batch.precedence = share.precedence
        charged[batch.client_id] += charge.of_client
        read.append(request.request_id)
    return read


@given(
    owners=st.lists(st.integers(1, MAX_CLIENTS), min_size=1, max_size=2 * MAX_BATCHES)
    | st.integers(1, 2 * MAX_BATCHES).map(lambda count: [1] * count),
    urgencies=st.lists(st.sampled_from([1.0, 1.0, 2.0, 16.0]), min_size=2 * MAX_BATCHES, max_size=2 * MAX_BATCHES),
    lines=st.lists(st.tuples(st.integers(0, 2 * MAX_BATCHES - 1), st.integers(1, 60)), min_size=1, max_size=150),
    slack_tokens=st.sampled_from([1, 30, 500]),
    num_taken=st.integers(0, 100),
    pressing=st.sets(st.integers(0, 2 * MAX_BATCHES - 1)),
)
def test_it_is_read_as_a_slow_reader_reads_it(
    owners: list[int],
    urgencies: list[float],
    lines: list[tuple[int, int]],
    slack_tokens: int,
    num_taken: int,
    pressing: set[int],
) -> None:
    """Also after some were taken, and where others press by now."""
    shares = {
        f"b{number}": Share(f"client-{owner}", float(owner), urgency)
        for number, (owner, urgency) in enumerate(zip(owners, urgencies, strict=False))
    }
    order = FairShare(FcfsOrder(), lambda batch_id: shares[batch_id], slack_tokens)
    for line, (number, size) in enumerate(lines):
        request = Request(f"b{number % len(owners)}.{line}", OFFLINE, size, size + 1)
        order.add(request, pack_tokens([line]))
    for request in list(order.in_order())[:num_taken]:
        order.take(request.request_id)
    for batch_id in [batch_id for number, batch_id in enumerate(shares) if number in pressing]:
        shares[batch_id] = Share(shares[batch_id].client_id, 1.0, 4.0, goes_first=True)
    assert [request.request_id for request in order.in_order()] == naive_reading(order, shares, slack_tokens)


@pytest.mark.parametrize("num_clients", [1, 1000])
def test_who_is_next_costs_no_look_at_each_batch(num_clients: int) -> None:
    assert num_calls_of_next(2000, num_clients) < 1000


def num_calls_of_next(num_batches: int, num_clients: int) -> int:
    """Of functions, until the next of that many batches' requests is known."""
    order, num_calls = FairShare(FcfsOrder(), lambda batch_id: Share(f"client-{int(batch_id[1:]) % num_clients}")), 0
    for number in range(num_batches):
        order.add(Request(f"b{number}.1", OFFLINE, 1, 10), pack_tokens([number]))

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal num_calls
        num_calls += event == "call"

    sys.setprofile(count)
    try:
        next(order.in_order())
    finally:
        sys.setprofile(None)
    return num_calls
