"""Who of the waiting online requests is next, and what that is worth to each client."""

import random
from collections.abc import Callable, Iterator, Mapping
from copy import copy

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.protocol.codec import decode, encode
from shared.scheduling.limits import Limits
from shared.scheduling.orders.online import vtc
from shared.scheduling.orders.online.order import ClientCounters, OnlineOrder
from shared.scheduling.orders.online.registry import OnlineOrderKnobs, make_online_order
from shared.scheduling.orders.online.vtc import MIN_CLIENTS_TO_PRUNE, Vtc
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.table import RequestTable
from tests.shared.scheduling.factories import (
    LIMITS,
    UNBOUNDED,
    make_decode,
    make_mirror,
    make_request,
    make_table,
    plan,
    tokens,
)

WEIGHT_INPUT, WEIGHT_OUTPUT = 1.0, 2.0


class Site:
    """An executor whose blocks are never shared: it runs what is scheduled and keeps the books."""

    def __init__(self, limits: Limits, order: OnlineOrder, weights: Mapping[str, float] | None = None) -> None:
        self.limits = limits
        self.weights = weights or {}
        self.table = RequestTable(order)
        self.mirror = make_mirror(limits, online_order="vtc" if isinstance(order, Vtc) else "fcfs")
        self.ended: list[str] = []
        self._num_arrived = 0

    @property
    def num_free_blocks(self) -> int:
        return self.limits.num_blocks - sum(request.num_blocks for request in self.table)

    def arrive(self, client: str, prompt: int = 10, output: int = 5) -> Request:
        self._num_arrived += 1
        request_id, weight = f"r{self._num_arrived}", self.weights.get(client, 1.0)
        made = [make_request(request_id, prompt=prompt, max_tokens=output, client=client, weight=weight) for _ in "12"]
        self.table.add(made[0])
        self.mirror.arrive(made[1])
        return made[0]

    def step(self, policy: Policy = UNBOUNDED) -> list[str]:
        """Run one; the ids of the waiting requests that entered."""
        schedule = plan(self.table, [], self.limits, policy, self.num_free_blocks)
        assert schedule.entries or not len(self.table), "idle while somebody waits"
        for request_id in schedule.preempted:
            self.table.preempt(self._held(request_id))
        entered = []
        for entry in schedule.entries:
            request = self._held(entry.request_id)
            if not request.is_running:
                entered.append(entry.request_id)
            waited = not request.is_running
            request.num_blocks += request.num_new_blocks(entry.num_scheduled_tokens, self.limits.block_size)
            if waited:
                self.table.start(request)
        self._tell(schedule.entries)
        for entry in schedule.entries:
            self._compute(entry)
        self.table.check_integrity()
        return entered

    def _tell(self, entries: list[ScheduledRequest]) -> None:
        """Q_send: the mirror takes it over and assumes the outcome."""
        states = [copy(request) for request in self.table]
        for state in states:
            state.client_weight = 1.0  # not in the message: the counters tell
        self.mirror.observe(states, self.ended, self.num_free_blocks, self.table.online_order.counters())
        self.mirror.start(entries)
        self.mirror.finish(entries)

    def _compute(self, entry: ScheduledRequest) -> None:
        request = self._held(entry.request_id)
        request.num_computed_tokens += entry.num_scheduled_tokens
        if request.num_remaining_tokens == 0:
            request.num_tokens += 1
            if request.kind is Kind.ONLINE:
                self.table.online_order.generate(request)
            if request.num_tokens >= request.max_total_tokens:
                self.table.remove(request.request_id)
                self.ended.append(request.request_id)

    def _held(self, request_id: str) -> Request:
        return held_by(self.table, request_id)


def held_by(table: RequestTable, request_id: str) -> Request:
    request = table.get(request_id)
    assert request is not None
    return request


def count(order: OnlineOrder, client: str) -> float:
    counters = order.counters()
    assert counters is not None
    return counters.tokens[client]


def ids(requests: Iterator[Request]) -> list[str]:
    return [request.request_id for request in requests]


lengths = st.lists(st.tuples(st.integers(1, 120), st.integers(1, 40)), min_size=1, max_size=8)


@given(
    first=lengths,
    second=lengths,
    max_seqs=st.integers(1, 12),
    num_blocks=st.integers(10, 60),
    chunk=st.integers(8, 256),
    weight=st.sampled_from((0.25, 1.0, 2.0, 7.5)),
)
def test_backlogged_clients_get_service_by_their_weights(
    first: list[tuple[int, int]],
    second: list[tuple[int, int]],
    max_seqs: int,
    num_blocks: int,
    chunk: int,
    weight: float,
) -> None:
    """The bound of the VTC paper (Lemma 4.3), whatever the lengths; and no step is idle while somebody waits."""
    order = Vtc(WEIGHT_INPUT, WEIGHT_OUTPUT)
    site = Site(Limits(16, num_blocks, chunk, max_seqs), order, {"b": weight})
    bound = max(WEIGHT_INPUT * 120, WEIGHT_OUTPUT * num_blocks * 16) / min(1.0, weight)
    arrived = {"a": 0, "b": 0}
    for _ in range(150):
        for client, sizes in (("a", first), ("b", second)):
            while sum(r.client_id == client for r in site.table.waiting(Kind.ONLINE).values()) <= max_seqs:
                site.arrive(client, *sizes[arrived[client] % len(sizes)])
                arrived[client] += 1
        site.step()
        assert abs(count(order, "a") - count(order, "b")) <= bound


arrivals = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("abcd"), st.integers(1, 100), st.integers(1, 20)), max_size=40
)


@pytest.mark.parametrize("make_order", [OnlineOrder, Vtc])
@given(arriving=arrivals, num_blocks=st.integers(8, 40), max_seqs=st.integers(1, 6))
@example(  # two clients with equal counters, both of whose requests were preempted, at different times
    arriving=[(0, "a", 44, 2), (0, "a", 89, 9), (0, "b", 46, 1), (0, "b", 10, 9), (0, "d", 47, 3), (0, "d", 65, 2)],
    num_blocks=8,
    max_seqs=2,
)
def test_work_is_conserved_and_the_mirror_orders_alike(
    make_order: Callable[[], OnlineOrder], arriving: list[tuple[int, str, int, int]], num_blocks: int, max_seqs: int
) -> None:
    """Nobody is left waiting for ever; after each step message, with arrivals since, both sides plan the same."""
    site = Site(Limits(16, num_blocks, 64, max_seqs), make_order(), {"b": 3.0, "c": 0.5})
    for gap, client, prompt, output in arriving:
        for _ in range(gap):
            site.step()
        site.arrive(client, prompt, output)
        assert ids(site.mirror.table.online_queue()) == ids(site.table.online_queue())
    for _ in range(10_000):
        if not len(site.table):
            break
        site.step()
        assert ids(site.mirror.table.online_queue()) == ids(site.table.online_queue())
        assert site.mirror.table.online_order.counters() == site.table.online_order.counters()
    assert sorted(site.ended) == sorted(f"r{n + 1}" for n in range(len(arriving)))


def test_a_flood_does_not_delay_a_light_client() -> None:
    site = Site(Limits(16, 1000, 64, 2), Vtc())
    for _ in range(50):
        site.arrive("flood")
    for _ in range(7):
        site.step()
    light = site.arrive("light")
    entered = [request_id for _ in range(7) for request_id in site.step()]
    assert entered[0] == light.request_id


def test_first_come_first_served_is_not_changed_by_clients() -> None:
    requests = [make_request(f"r{n}", client="ab"[n % 3 == 0]) for n in range(9)]
    table = make_table(*requests)
    assert ids(table.online_queue()) == [f"r{n}" for n in range(9)]
    assert table.online_order.counters() is None
    assert tokens(plan(table)) == {"r0": 100, "r1": 100, "r2": 100, "r3": 100, "r4": 100, "r5": 12}


def test_clients_take_turns_by_what_their_prompts_count() -> None:
    long = [make_request(f"long-{n}", prompt=100, client="a") for n in range(3)]
    short = [make_request(f"short-{n}", prompt=40, client="b") for n in range(6)]
    queue = make_table(*long, *short, order=Vtc()).online_queue()
    assert ids(queue) == [
        "long-0",
        "short-0",
        "short-1",
        "short-2",
        "long-1",
        "short-3",
        "short-4",
        "long-2",
        "short-5",
    ]


def test_a_client_of_weight_three_gets_three_requests_for_one() -> None:
    light = [make_request(f"light-{n}", client="light") for n in range(3)]
    heavy = [make_request(f"heavy-{n}", client="heavy", weight=3.0) for n in range(6)]
    order = Vtc()
    queue = ids(make_table(*light, *heavy, order=order).online_queue())
    assert queue == [
        "light-0",
        *("heavy-0", "heavy-1", "heavy-2"),
        "light-1",
        *("heavy-3", "heavy-4", "heavy-5"),
        "light-2",
    ]
    order.generate(heavy[0], 30)
    order.generate(light[0], 30)
    assert count(order, "light") == 3 * count(order, "heavy") == 30 * WEIGHT_OUTPUT


def test_a_clients_newest_request_says_its_weight() -> None:
    order = Vtc()
    table = make_table(make_request("a", client="x", weight=2.0), order=order)
    order.generate(make_request("a", client="x"), 10)
    assert count(order, "x") == 10 * WEIGHT_OUTPUT / 2
    table.add(make_request("b", client="x"))
    order.generate(make_request("b", client="x"), 10)
    assert count(order, "x") == 10 * WEIGHT_OUTPUT * 1.5


def test_counters_stay_small_and_the_order_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of executors that run for months: what is told of a client has a bound, above which nobody hears it."""
    for seed in range(20):
        ways, most = list[list[str]](), list[float]()
        for most_counted in (1e5, 4000.0):
            monkeypatch.setattr(vtc, "MOST_COUNTED", most_counted)
            rng, order, seen = random.Random(seed), Vtc(), list[str]()
            table, running = make_table(order=order), list[Request]()
            for number in range(400):
                client = rng.choice("abc")
                weight = {"a": 1.0, "b": 0.25, "c": 4.0}[client]
                table.add(make_request(f"{client}{number}", prompt=rng.randint(1, 60), client=client, weight=weight))
                for request in list(table.online_queue())[: rng.randint(0, 2)]:
                    request.num_blocks = 1
                    table.start(request)
                    running.append(request)
                for request in running:
                    order.generate(request)
                while len(running) > 6:
                    table.remove(running.pop(rng.randrange(len(running))).request_id)
                seen += [*ids(table.online_queue())[:5], "|"]
            ways.append(seen)
            most.append(max(order.counters().tokens.values()))
        assert ways[0] == ways[1] and most[1] < 6000 < most[0]


def test_a_client_of_little_weight_is_told_of_for_years() -> None:
    order = Vtc()
    order.add(make_request("first", client="slow", weight=0.001))
    for day in range(1000):
        order.generate(make_request(client="slow"), 500 * 86_400)
        order.add(make_request(f"day-{day}", client="slow", weight=0.001))
        decode(encode(order.counters()), ClientCounters)


def test_idle_time_earns_no_credit() -> None:
    order = Vtc()
    site = Site(Limits(16, 1000, 64, 1), order)
    old, busy = site.arrive("old"), [site.arrive("busy", 20, 10) for _ in range(20)]
    while busy[9].request_id not in site.ended:
        site.step()
    assert old.request_id in site.ended
    floor = count(order, "busy")
    for client in ("new", "old"):
        site.arrive(client)
        assert count(order, client) == floor


def test_a_newcomer_starts_at_the_last_waiting_clients_counter() -> None:
    order = Vtc()
    site = Site(LIMITS, order)
    site.arrive("a", 100, 10)
    for _ in range(5):
        site.step()
    assert count(order, "a") == 100 * WEIGHT_INPUT + 5 * WEIGHT_OUTPUT
    site.arrive("b")
    assert count(order, "b") == count(order, "a")


def test_a_preempted_request_is_first_of_its_client_and_its_prompt_counts_once() -> None:
    order = Vtc()
    first, second = make_request("first", client="a"), make_request("second", client="a")
    other = make_request("other", prompt=300, client="b")
    table = make_table(first, second, other, order=order)
    first.num_blocks = 7
    table.start(first)
    assert count(order, "a") == 100
    first.num_computed_tokens = 100
    table.preempt(first)
    assert ids(table.online_queue()) == ["other", "first", "second"]
    first.num_blocks = 7
    table.start(first)
    assert count(order, "a") == 100


def test_a_prompt_counts_by_its_clients_weight_and_once_where_it_waits_again_alone() -> None:
    order = Vtc()
    request = make_request("a", client="a", weight=4.0)
    table = make_table(request, order=order)
    for _ in range(2):
        request.num_blocks = 7
        table.start(request)
        assert count(order, "a") == 100 * WEIGHT_INPUT / 4 and not ids(table.online_queue())
        table.preempt(request)
        assert ids(table.online_queue()) == ["a"]


def test_who_takes_an_order_over_has_those_that_lose_their_kv_wait_as_in_the_first() -> None:
    """By their first start, before those that have never run."""
    table = make_table(*(make_request(name, client=name[0]) for name in ("a1", "a2", "a3", "b1")), order=Vtc())
    for name in ("a2", "b1", "a1"):
        request = held_by(table, name)
        request.num_blocks = 7
        table.start(request)
    other = RequestTable(Vtc())
    other.replace(table.copies(), table.online_order.counters())
    for each in (table, other):
        for name in ("a1", "b1", "a2"):
            each.preempt(held_by(each, name))
        assert ids(each.online_queue()) == ["a2", "b1", "a1", "a3"]


@given(
    online=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 300)), max_size=12),
    num_decodes=st.integers(0, 5),
    offline=st.lists(st.integers(1, 300), max_size=12),
)
def test_offline_load_never_changes_the_online_order(
    online: list[tuple[str, int]], num_decodes: int, offline: list[int]
) -> None:
    def online_requests() -> list[Request]:
        decodes = [make_decode(f"d{n}", context=50) for n in range(num_decodes)]
        return decodes + [make_request(f"r{n}", prompt=p, client=c) for n, (c, p) in enumerate(online)]

    alone = plan(make_table(*online_requests(), order=Vtc()))
    held = [make_decode(f"off{n}", Kind.OFFLINE, context) for n, context in enumerate(offline)]
    waiting = [make_request("", Kind.OFFLINE, prompt=prompt) for prompt in offline]
    together = plan(make_table(*online_requests(), *held, order=Vtc()), waiting, policy=Policy(60.0))
    assert [e for e in together.entries if e.kind is Kind.ONLINE] == alone.entries


def test_the_executors_counters_replace_the_mirrors() -> None:
    mirror = make_mirror(LIMITS, online_order="vtc")
    mirror.arrive(make_request("mine", client="a"))
    told = Vtc()
    table = make_table(make_request("x", client="b"), make_request("y", client="c"), order=told)
    for client_of, num_tokens in (("x", 500), ("y", 400)):
        request = table.get(client_of)
        assert request is not None
        told.generate(request, num_tokens)
    mirror.observe([copy(request) for request in table], [], 1000, told.counters())
    assert ids(mirror.table.online_queue()) == ["y", "mine", "x"]
    assert count(mirror.table.online_order, "a") == 400 * WEIGHT_OUTPUT


def test_clients_that_would_be_lifted_anyway_are_forgotten() -> None:
    order = Vtc()
    table = RequestTable(order)
    stays = make_request("stays", client="stays")
    table.add(stays)
    order.generate(stays, 10)
    for n in range(3 * MIN_CLIENTS_TO_PRUNE):
        table.add(make_request(f"r{n}", client=f"client-{n}"))
        table.remove(f"r{n}")
    assert len(order._tokens) <= MIN_CLIENTS_TO_PRUNE
    assert count(order, "stays") == 10 * WEIGHT_OUTPUT


def test_names_and_weights() -> None:
    assert type(make_online_order("fcfs", OnlineOrderKnobs())) is OnlineOrder
    assert isinstance(make_online_order("vtc", OnlineOrderKnobs(vtc_weight_input=0.5, vtc_weight_output=3.0)), Vtc)
    with pytest.raises(ValueError, match="unknown online order 'lifo'; known: fcfs, vtc"):
        make_online_order("lifo", OnlineOrderKnobs())
    with pytest.raises(ValueError, match="weights must not be negative, nor both 0: -1, 2"):
        make_online_order("vtc", OnlineOrderKnobs(vtc_weight_input=-1.0))
    with pytest.raises(ValueError, match="nor both 0"):
        Vtc(0.0, 0.0)
    request = make_request(client="a")
    for weight_input, weight_output in ((0.0, 2.0), (1.0, 0.0), (1.0, 1.0)):
        table = make_table(copy(request), order=(order := Vtc(weight_input, weight_output)))
        table.start(next(table.online_queue()))
        order.generate(request, 5)
        assert count(order, "a") == 100 * weight_input + 5 * weight_output
