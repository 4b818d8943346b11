"""Offline work of many clients and batches: shares, urgency, the slack, and the order within them."""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared.scheduling.orders.offline.blend import BlendOrder
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.orders.offline.order import OfflineOrder, Turn
from shared.scheduling.orders.offline.psm import PsmOrder
from shared.scheduling.orders.offline.psm_fair import PsmFairOrder
from shared.scheduling.orders.offline.share import Account, ClientAccount, Share, lifted
from shared.scheduling.orders.offline.turns import MAX_BATCHES
from shared.scheduling.orders.offline.urgency import MAX_CLIENT_URGENCY, MAX_URGENCY, urgency
from shared.scheduling.orders.offline.view import NOBODY, OfflineView
from shared.scheduling.packed_prompt import pack_tokens
from shared.scheduling.request import Kind, Request

HOUR_S = 3600.0
SHARES = {
    "a1": Share("ann", 1.0),
    "a2": Share("ann", 1.0, urgency=8.0),
    "b1": Share("ben", 2.0),
    "c1": Share("cleo", 1.0, urgency=2.0),
    "c2": Share("cleo", 1.0),
}


def make(request_id: str, max_total_tokens: int = 10) -> Request:
    return Request(request_id, Kind.OFFLINE, max_total_tokens - 1, max_total_tokens)


def fair(shares: dict[str, Share], slack_tokens: int = 1, order: OfflineOrder | None = None) -> FairShare:
    return FairShare(order or FcfsOrder(), lambda batch_id: shares.get(batch_id, Share()), slack_tokens)


def add(order: FairShare, batch_id: str, count: int, tokens: int = 10, first: int = 1) -> None:
    for line in range(first, first + count):
        order.add(make(f"{batch_id}.{line}", tokens), pack_tokens([line]))


def serve(order: FairShare, count: int) -> list[str]:
    """So many enter and end, one after the other; the batches that they are of."""
    served = []
    for _ in range(count):
        request_id = next(order.in_order()).request_id
        order.take(request_id)
        order.remove(request_id)
        served.append(request_id.partition(".")[0])
    return served


def test_clients_have_equal_parts_whatever_their_backlog() -> None:
    order = fair({"big": Share("ann"), "small": Share("ben")})
    add(order, "big", 1000)
    assert serve(order, 100) == ["big"] * 100
    add(order, "small", 50)
    served = serve(order, 100)
    assert served.count("small") == 50
    assert all({served[n], served[n + 1]} == {"big", "small"} for n in range(0, 100, 2))
    assert serve(order, 10) == ["big"] * 10


def test_parts_are_of_tokens_and_by_weight() -> None:
    order = fair({"long": Share("ann"), "short": Share("ben", weight=3.0)})
    add(order, "long", 100, tokens=60)
    add(order, "short", 1000, tokens=20)
    served = serve(order, 500)
    assert served.count("short") * 20 == pytest.approx(3 * served.count("long") * 60, rel=0.05)


def test_a_clients_batches_run_together() -> None:
    order = fair({f"b{n}": Share("ann") for n in range(5)})
    for n in range(5):
        add(order, f"b{n}", 20)
    served = serve(order, 50)
    assert [served.count(f"b{n}") for n in range(5)] == [10] * 5


def test_more_batches_are_no_larger_part() -> None:
    order = fair({f"b{n}": Share("ann" if n else "ben") for n in range(10)})
    for n in range(10):
        add(order, f"b{n}", 50)
    assert serve(order, 60).count("b0") == 30


def test_an_urgent_batch_goes_first_and_does_not_stop_the_others() -> None:
    order = fair({"calm": Share("ann"), "urgent": Share("ann", urgency=16.0)})
    add(order, "calm", 200)
    add(order, "urgent", 200)
    assert serve(order, 170).count("urgent") == pytest.approx(160, abs=1)


def test_urgency_counts_little_against_others() -> None:
    order = fair({"late": Share("ann", urgency=MAX_URGENCY), "calm": Share("ben")})
    add(order, "late", 500)
    add(order, "calm", 500)
    assert serve(order, 500).count("calm") == pytest.approx(500 / (1 + MAX_CLIENT_URGENCY), abs=1)


def test_nobody_saves_up_idle_time() -> None:
    order = fair({"a": Share("ann"), "b": Share("ben")})
    add(order, "a", 300)
    add(order, "b", 1)
    assert serve(order, 201).count("a") == 200
    add(order, "b", 100, first=2)
    assert serve(order, 20).count("b") == 10
    serve(order, order.num_waiting)
    add(order, "a", 100, first=1000)
    assert serve(order, 50) == ["a"] * 50
    add(order, "b", 100, first=1000)
    assert serve(order, 20).count("b") == 10


def test_who_sends_one_request_after_another_gets_no_more_than_who_sends_all_at_once() -> None:
    """Nothing of it is known between them."""
    order = fair({"small": Share("ben")} | {f"large-{n}": Share("ann") for n in range(1000)})
    add(order, "small", 1000, tokens=10)
    tokens, number = {"ann": 0, "ben": 0}, 0
    for _ in range(500):
        if not any(request.request_id.startswith("large") for request in order.in_order()):
            add(order, f"large-{number}", 1, tokens=1000)
            number += 1
        (batch_id,) = serve(order, 1)
        is_large = batch_id.startswith("large")
        tokens["ann" if is_large else "ben"] += 1000 if is_large else 10
    assert abs(tokens["ann"] - tokens["ben"]) <= 1010
    assert len(order._owing) <= 1


def test_what_a_client_owes_is_forgotten_once_the_others_were_charged_as_much() -> None:
    order = fair({f"b{n}": Share(f"client-{n}") for n in range(50)} | {"other": Share("other")})
    for number in range(50):
        add(order, f"b{number}", 1, tokens=100)
    add(order, "other", 200, tokens=100)
    serve(order, 250)
    assert order.num_waiting == 0 and len(order._owing) == 0


def test_of_clients_that_come_once_nothing_stays() -> None:
    """Each alone: nobody waited for what another got."""
    order = fair({f"b{n}": Share(f"client-{n}") for n in range(1000)})
    for number in range(1000):
        add(order, f"b{number}", 1, tokens=100)
        assert serve(order, 1) == [f"b{number}"]
    assert len(order._owing) == 0


def test_a_new_client_does_not_owe_what_others_were_served_before() -> None:
    order = fair({"a": Share("ann"), "b": Share("ben")})
    add(order, "a", 100)
    taken = [request.request_id for request in order.in_order()]
    for request_id in taken:
        order.take(request_id)
    add(order, "b", 100)
    add(order, "a", 100, first=200)
    assert serve(order, 40).count("a") == pytest.approx(20, abs=1)


@pytest.mark.parametrize("other", ["ann", "ben"])
def test_a_lost_request_is_not_charged_twice(other: str) -> None:
    order = fair({"a": Share("ann"), "b": Share(other)})
    add(order, "a", 20)
    add(order, "b", 20)
    for _ in range(30):
        order.take("a.1")
        order.give_back("a.1")
    assert serve(order, 20).count("a") == 10


def test_who_only_ran_meanwhile_saves_up_nothing_when_it_is_given_back() -> None:
    order = fair({"a": Share("ann"), "b": Share("ben"), "b2": Share("ben")})
    add(order, "a", 1)
    add(order, "b", 1)
    add(order, "b2", 300)
    order.take("a.1")
    order.take("b.1")
    assert serve(order, 200) == ["b2"] * 200
    order.give_back("a.1")
    order.give_back("b.1")
    add(order, "a", 100, first=2)
    add(order, "b", 100, first=2)
    served = serve(order, 80)
    assert served.count("a") == pytest.approx(40, abs=2)
    assert served.count("b") == pytest.approx(20, abs=2)


@given(utility_ratio=st.sampled_from([0.0, 0.5, 1.0]), seed=st.integers(0, 99), prompts=st.lists(st.integers(0, 3)))
def test_one_batch_is_served_in_the_inner_order(utility_ratio: float, seed: int, prompts: list[int]) -> None:
    plain, inner = (PsmFairOrder(2, utility_ratio, iter(random.Random(seed).random, None)) for _ in "12")
    order = FairShare(inner)
    for line, prompt in enumerate(prompts):
        for each in (plain, order):
            each.add(make(f"batch_1.{line}"), pack_tokens([prompt] * 4 + [line]))
    while plain.num_waiting:
        ids = [request.request_id for request in plain.in_order()]
        assert [request.request_id for request in order.in_order()] == ids
        for each in (plain, order):
            each.take(ids[0])
            each.remove(ids[0])
    assert order.num_waiting == 0


def least_charged(holder: Account, peers: Mapping[str, Account]) -> float:
    """Where one that had nothing waiting begins again; for one that had, no bound."""
    if holder.num_waiting:
        return -math.inf
    return min((peer.charged for peer in peers.values() if peer.num_waiting), default=-math.inf)


class FairMachine(RuleBasedStateMachine):
    """Through arrivals, starts, losses and ends: reading is what taking then does, nothing is lost, and nobody comes
    back with more credit than what is refunded."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[str, None] = {}
        self.taken: dict[str, None] = {}

    @initialize(slack_tokens=st.sampled_from([1, 30, 500]))
    def start(self, slack_tokens: int) -> None:
        self.shares = dict(SHARES)
        self.order = FairShare(FcfsOrder(), lambda batch_id: self.shares[batch_id], slack_tokens)
        self.numbers = itertools.count(1)

    @rule(batch_id=st.sampled_from(list(SHARES)), tokens=st.integers(1, 50))
    def add(self, batch_id: str, tokens: int) -> None:
        request_id = f"{batch_id}.{next(self.numbers)}"
        self.order.add(make(request_id, tokens), pack_tokens([1]))
        self.waiting[request_id] = None

    @precondition(lambda self: self.waiting)
    @rule(index=st.integers(0, 4))
    def take(self, index: int) -> None:
        ids = [request.request_id for request in self.order.in_order()]
        request_id = ids[0] if index else ids[-1]
        self.order.take(request_id)
        del self.waiting[request_id]
        self.taken[request_id] = None

    @precondition(lambda self: self.waiting)
    @rule()
    def take_all_that_was_read(self) -> None:
        ids = [request.request_id for request in self.order.in_order()]
        for request_id in ids:
            assert next(self.order.in_order()).request_id == request_id
            self.order.take(request_id)
        self.taken |= self.waiting
        self.waiting.clear()

    @precondition(lambda self: self.taken)
    @rule(index=st.integers(0, 20))
    def give_back(self, index: int) -> None:
        request_id = list(self.taken)[index % len(self.taken)]
        batch, charge = self.order._batches[request_id.partition(".")[0]], self.order._charges[request_id]
        least_of_batch = least_charged(batch, batch.client.batches) - charge.of_batch
        least_of_client = least_charged(batch.client, self.order._clients) - charge.of_client
        self.order.give_back(request_id)
        assert batch.charged >= least_of_batch - 1e-6
        assert batch.client.charged >= least_of_client - 1e-6
        del self.taken[request_id]
        self.waiting[request_id] = None

    @precondition(lambda self: self.waiting or self.taken)
    @rule(index=st.integers(0, 20))
    def remove(self, index: int) -> None:
        known = [*self.waiting, *self.taken]
        request_id = known[index % len(known)]
        self.order.remove(request_id)
        self.waiting.pop(request_id, None)
        self.taken.pop(request_id, None)

    @rule(batch_id=st.sampled_from(list(SHARES)), pressing=st.floats(1.0, MAX_URGENCY))
    def press(self, batch_id: str, pressing: float) -> None:
        self.shares[batch_id] = replace(self.shares[batch_id], urgency=pressing)

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "order"):
            return
        self.order.check_integrity()
        ids = [request.request_id for request in self.order.in_order()]
        assert ids == [request.request_id for request in self.order.in_order()]
        assert sorted(ids) == sorted(self.waiting)
        assert self.order.num_waiting == len(ids)


FairMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=40)
TestFair = FairMachine.TestCase


LINES = st.tuples(st.integers(1, 80), st.integers(0, 3))  # tokens in all, and which of four prompts


@settings(max_examples=80)
@given(
    lines=st.lists(st.tuples(LINES, LINES), min_size=40, max_size=40),
    weight=st.floats(0.25, 8.0),
    slack_tokens=st.sampled_from([1, 50, 400]),
    order=st.sampled_from([FcfsOrder, lambda: PsmOrder(4), lambda: PsmFairOrder(4, 0.7, iter(lambda: 0.5, None))]),
)
def test_backlogged_clients_never_drift_apart(
    lines: list[tuple[tuple[int, int], tuple[int, int]]],
    weight: float,
    slack_tokens: int,
    order: Callable[[], OfflineOrder],
) -> None:
    """What two clients were served, over their weights, differs by less than the slack and one request."""
    shares = {"a": Share("ann"), "b": Share("ben", weight)}
    fairly = fair(shares, slack_tokens, order())
    left, charged = {"a": len(lines), "b": len(lines)}, {"a": 0.0, "b": 0.0}
    for line, pair in enumerate(lines):
        for batch_id, (size, prompt) in zip("ab", pair, strict=True):
            fairly.add(make(f"{batch_id}.{line}", size), pack_tokens([prompt] * 9))
    while all(left.values()):
        request = next(fairly.in_order())
        fairly.take(request.request_id)
        batch_id = request.request_id[0]
        left[batch_id] -= 1
        charged[batch_id] += shares[batch_id].charge(request.max_total_tokens).of_client
        assert abs(charged["a"] - charged["b"]) < slack_tokens + 80 * max(1.0, 1 / weight)


@settings(max_examples=40)
@given(urgencies=st.lists(st.sampled_from([1.0, 2.0, 16.0]), min_size=3, max_size=3), slack_tokens=st.integers(1, 300))
def test_the_batches_of_a_client_never_drift_apart(urgencies: list[float], slack_tokens: int) -> None:
    shares = {f"b{n}": Share("ann", urgency=each) for n, each in enumerate(urgencies)}
    order = fair(shares, slack_tokens)
    left = dict.fromkeys(shares, 60)
    for batch_id in shares:
        add(order, batch_id, 60)
    charged = dict.fromkeys(shares, 0.0)
    while all(left.values()):
        (batch_id,) = serve(order, 1)
        left[batch_id] -= 1
        charged[batch_id] += shares[batch_id].charge(10).of_batch
        assert max(charged.values()) - min(charged.values()) < slack_tokens + 10


def groups_in_turn(order: FairShare, count: int) -> list[str]:
    """The prompts, told by their first token, of so many that enter one after the other."""
    prompts = []
    for _ in range(count):
        request_id = next(order.in_order()).request_id
        order.take(request_id)
        prompts.append(request_id.rpartition(".")[2].partition("-")[0])
    return prompts


def test_clients_with_the_same_prompts_run_them_together() -> None:
    """Twelve prompts, each shared by ten lines of either client, in another order: as few changes from one prompt to
    another as if one batch had all of them."""
    rng, num_prompts, num_lines = random.Random(4), 12, 10
    shares = {"a": Share("ann"), "b": Share("ben"), "one": Share("cleo")}
    apart, together = (fair(shares, 400, PsmOrder(4)) for _ in "12")
    for batch_id in ("a", "b"):
        lines = [(prompt, line) for prompt in range(num_prompts) for line in range(num_lines)]
        rng.shuffle(lines)
        for prompt, line in lines:
            packed = pack_tokens([prompt] * 40 + [line])
            apart.add(make(f"{batch_id}.{prompt}-{line}", 50), packed)
            together.add(make(f"one.{prompt}-{batch_id}{line}", 50), packed)
    total = 2 * num_prompts * num_lines
    for order in (apart, together):
        prompts = groups_in_turn(order, total)
        assert sum(before != after for before, after in itertools.pairwise(prompts)) == num_prompts - 1


def test_clients_with_prompts_of_their_own_change_once_in_a_slack() -> None:
    def num_changes(slack_tokens: int) -> int:
        order = fair({"a": Share("ann"), "b": Share("ben")}, slack_tokens, PsmOrder(4))
        for number, batch_id in enumerate("ab"):
            for line in range(100):
                order.add(make(f"{batch_id}.{number}-{line}", 50), pack_tokens([number] * 40 + [line]))
        return sum(before != after for before, after in itertools.pairwise(groups_in_turn(order, 200)))

    assert num_changes(1) == 199
    assert num_changes(1000) == 9


@pytest.mark.parametrize("other", ["ann", "ben"])
def test_a_turn_lasts_until_the_slack_is_used_up(other: str) -> None:
    order = fair({"a": Share("ann"), "b": Share(other)}, slack_tokens=10)
    for batch_id in "ab":
        add(order, batch_id, 20, tokens=3)
    assert serve(order, 14) == [*"aaaa", *"bbbb", *"aaa", *"bbb"], "0 to 9, then 12 to 18"


def test_who_presses_by_now_goes_first_once_one_of_it_was_taken() -> None:
    shares = {"a": Share("ann"), "b": Share("ben")}
    order = fair(shares, slack_tokens=1000)
    add(order, "a", 3)
    add(order, "b", 3)
    shares["b"] = Share("ben", urgency=2.0)
    assert next(order.in_order()).request_id == "a.1"
    order.take("b.1")
    assert serve(order, 4) == [*"bbaa"]
    order.check_integrity()


def test_what_is_read_is_what_taking_shows_also_where_somebody_presses_meanwhile() -> None:
    shares = {"a": Share("ann"), "b": Share("ben")}
    order = fair(shares, slack_tokens=1000)
    for line in range(1, 5):
        add(order, "b", 1, first=line)
        add(order, "a", 1, first=line)
    shares["b"] = Share("ben", urgency=2.0)
    shown = [request.request_id[0] for request in order.in_order()]
    assert shown == [*"bbbbaaaa"] == serve(order, 8)


def test_the_order_within_hears_who_reads() -> None:
    order = FairShare(PsmOrder(4))
    for line in range(4):
        order.add(make(f"batch.{line}"), pack_tokens([line % 2] * 8 + [line]))

    def shown(reader: str) -> str:
        return next(order.in_order(OfflineView(reader))).request_id

    order.take("batch.0", "executor-0")
    assert (shown("executor-0"), shown("executor-1")) == ("batch.2", "batch.1")
    order.leave("executor-0")
    assert shown("executor-1") == "batch.2"


def test_the_order_within_learns_and_remembers() -> None:
    order, other = (FairShare(BlendOrder(4, 0.0, 0.01)) for _ in "12")
    add(order, "batch", 2)
    order.take("batch.1")
    assert order.remember() == b""
    order.learn("batch.1", 5)
    assert order.remember() != b"" and order.details()["output_lengths"] == 1
    other.recall(order.remember())
    assert other.remember() == order.remember()


def test_within_the_slack_who_presses_goes_first() -> None:
    shares = {"calm": Share("ann"), "urgent": Share("ben", urgency=2.0), "flex": Share("cleo", goes_first=True)}
    order = fair(shares, slack_tokens=1000)
    add(order, "calm", 300)
    add(order, "urgent", 300)
    add(order, "flex", 3)
    assert serve(order, 203) == ["flex"] * 3 + ["urgent"] * 200
    assert serve(order, 100) == ["calm"] * 100


def test_more_batches_than_have_their_turn_at_a_time_are_all_served() -> None:
    shares = {f"b{n}": Share(f"client-{n % 7}") for n in range(2 * MAX_BATCHES)}
    order = fair(shares, slack_tokens=25)
    for batch_id in shares:
        add(order, batch_id, 4)
    for _ in range(4):
        ids = [request.request_id for request in order.in_order()]
        assert len(ids) == order.num_waiting
        for request_id in ids[:60]:
            assert next(order.in_order()).request_id == request_id
            order.take(request_id)


def test_what_an_order_keeps_back_stops_nobody_else() -> None:
    class Withholding(FcfsOrder):
        def in_order(self, view: OfflineView = NOBODY, turn: Turn | None = None) -> Iterator[Request]:
            return (each for each in super().in_order(view, turn) if not each.request_id.startswith("a."))

    order = fair({"a": Share("ann"), "b": Share("ben")}, slack_tokens=15, order=Withholding())
    for batch_id in ("a", "b"):
        add(order, batch_id, 4)
    assert [request.request_id for request in order.in_order()] == [f"b.{line}" for line in range(1, 5)]


def test_urgency_doubles_as_what_is_left_halves() -> None:
    created_s, due_s = 1000.0, 1000.0 + 24 * HOUR_S
    left_h = (24, 18, 12, 6, 3, 1.5, 0.1, 0, -5)
    seen = [urgency(due_s - hours * HOUR_S, created_s, due_s) for hours in left_h]
    assert seen == [1.0, 1.0, 1.0, 2.0, 4.0, 8.0, MAX_URGENCY, MAX_URGENCY, MAX_URGENCY]
    assert urgency(19.5, 0.0, 20.0) == 20.0, "a window of seconds ends as any other"


def test_who_had_nothing_waiting_is_as_far_as_the_least_charged_of_those_that_have() -> None:
    accounts = {name: ClientAccount(name, num_waiting=1, charged=charged) for name, charged in (("a", 5.0), ("b", 9.0))}
    idle = {"c": ClientAccount("c", charged=1.0)}
    assert [lifted(ClientAccount("new", charged=own), accounts | idle, 2.0) for own in (0.0, 7.0)] == [5.0, 7.0]
    assert lifted(ClientAccount("new"), idle, 2.0) == 2.0


def test_an_id_waits_once_and_unknown_ones_are_named() -> None:
    order = fair(SHARES)
    add(order, "a1", 1)
    with pytest.raises(ValueError, match=r"request a1\.1 is here already"):
        add(order, "a1", 1)
    for act in (order.take, order.give_back, order.remove):
        with pytest.raises(KeyError):
            act("a1.2")
        with pytest.raises(KeyError):
            act("b1.1")
    order.check_integrity()


@pytest.mark.parametrize("slack_tokens", [1, 200])
def test_clients_are_served_alike_whoever_of_several_executors_takes_their_requests(slack_tokens: int) -> None:
    """Each client's prompts are in groups, which executors keep to; what the clients were charged stays as close."""
    order = FairShare(PsmOrder(4), lambda batch_id: Share(client_id=batch_id), slack_tokens)
    for client in ("a", "b"):
        for number in range(60):
            order.add(make(f"{client}.{number}", 50), pack_tokens([number % 5] * 8 + [number] * 4))
    charged = {"a": 0, "b": 0}
    for turn in range(100):
        reader = f"executor-{turn % 3 // 2}"
        request = next(order.in_order(OfflineView(reader)))
        order.take(request.request_id, reader)
        charged[request.request_id[0]] += request.max_total_tokens
        assert abs(charged["a"] - charged["b"]) < slack_tokens + request.max_total_tokens
    order.check_integrity()
