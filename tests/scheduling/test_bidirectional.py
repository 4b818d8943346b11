"""The bidirectional pool against a model that stores every token in its slot."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.scheduling.bidirectional import BidirectionalPool
from shared.scheduling.blocks import BlockOwners
from shared.scheduling.request import Kind
from shared.scheduling.slot_transfers import SlotOperations

BLOCK = 4
Content = tuple[Kind, tuple[int, ...]]  # what a slot holds: the KV of the last of these tokens


class Device:
    """Slots of device and host, each with the content that was last written to it."""

    def __init__(self) -> None:
        self.slots: dict[int, Content] = {}
        self.host: dict[int, Content] = {}

    def execute(self, operations: SlotOperations) -> None:
        """Each source is read before anything is written; a source that was never written is an error."""
        device = [(slot, self.slots[source]) for source, slot in operations.moves]
        device += [(slot, self.host[source]) for source, slot in operations.restores]
        host = [(slot, self.slots[source]) for source, slot in operations.checkpoints]
        assert len({slot for slot, _ in device}) == len(device), "written twice"
        assert len({slot for slot, _ in host}) == len(host), "written twice"
        assert {slot for slot, _ in host}.isdisjoint(source for source, _ in operations.restores)
        self.slots.update(device)
        self.host.update(host)

    def copy(self) -> Device:
        other = Device()
        other.slots, other.host = dict(self.slots), dict(self.host)
        return other


class Bench:
    """A pool, the device behind it, and what each request has computed."""

    def __init__(self, num_blocks: int = 8, num_host_slots: int = 100, keeps_online: bool = False) -> None:
        self.pool = BidirectionalPool(num_blocks, BLOCK, num_host_slots, keeps_online)
        self.device = Device()
        self.tokens: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.kinds: dict[str, Kind] = {}
        self.in_flight: list[str] = []
        self.paused: set[str] = set()

    def add(self, request_id: str, kind: Kind, tokens: list[int]) -> None:
        self.tokens[request_id], self.kinds[request_id] = list(tokens), kind
        self.computed[request_id] = self.pool.start(request_id, kind, tokens)

    def slot(self, request_id: str, position: int) -> int:
        offset = position % BLOCK
        if self.kinds[request_id] is Kind.OFFLINE:
            offset = BLOCK - 1 - offset
        return self.pool.table(request_id)[position // BLOCK] * BLOCK + offset

    def content(self, request_id: str, position: int) -> Content:
        return self.kinds[request_id], tuple(self.tokens[request_id][: position + 1])

    def check_reads(self, request_id: str, num_tokens: int, device: Device) -> None:
        for position in range(num_tokens):
            assert device.slots.get(self.slot(request_id, position)) == self.content(request_id, position)

    def grow(self, request_id: str, num_tokens: int) -> bool:
        """To ``num_tokens`` computed, in the step that comes; False where blocks are short."""
        grown = self.pool.grow(request_id, num_tokens)
        if grown:
            self.paused.discard(request_id)
            self.pool.lock(request_id)
        self.paused.update(self.pool.take_paused())
        for dropped in self.pool.take_dropped():
            self.forget(dropped)
        return grown

    def launch(self, targets: dict[str, int]) -> list[str]:
        """A step that brings requests to so many tokens each, as far as they fit; returns who runs."""
        running = [request_id for request_id, target in targets.items() if self._fits(request_id, target)]
        self.device.execute(self.pool.take_operations())
        written: set[int] = set()
        for request_id in running:
            self.check_reads(request_id, self.computed[request_id], self.device)
        for request_id in running:
            for position in range(self.computed[request_id], targets[request_id]):
                slot = self.slot(request_id, position)
                assert slot not in written, "two owners"
                written.add(slot)
                self.device.slots[slot] = self.content(request_id, position)
            self.computed[request_id] = targets[request_id]
        self.in_flight += running
        return running

    def finish(self, request_id: str) -> None:
        self.in_flight.remove(request_id)
        self.check_reads(request_id, self.computed[request_id], self.device)
        self.pool.unlock(request_id, self.computed[request_id])
        self.pool.commit(request_id, self.tokens[request_id], self.computed[request_id])

    def run(self, request_id: str, num_tokens: int) -> bool:
        """One step of one request alone."""
        if not self.launch({request_id: num_tokens}):
            return False
        self.finish(request_id)
        return True

    def pause(self, request_id: str) -> None:
        self.pool.pause(request_id)
        self.paused.add(request_id)

    def give_up(self, request_id: str) -> None:
        """What was made room for does not run: an online request ends, an offline one is paused."""
        if self.kinds[request_id] is Kind.ONLINE:
            self.free(request_id)
        else:
            self.pool.unlock(request_id, self.computed[request_id])
            self.pause(request_id)

    def check(self) -> None:
        """Whoever is not paused can read all that is its own once the copies are done."""
        self.pool.check_integrity()
        device = self.device.copy()
        device.execute(self.pool.peek_operations())
        for request_id, computed in self.computed.items():
            if request_id not in self.paused:
                self.check_reads(request_id, computed, device)

    def wind_up(self) -> None:
        """Each offline request is read once more, with all room to itself; nothing may be left in the end."""
        for request_id in list(self.in_flight):
            self.finish(request_id)
        for request_id in [key for key, kind in self.kinds.items() if kind is Kind.ONLINE]:
            self.free(request_id)
        while self.tokens:
            request_id, *others = self.tokens
            for other in others:
                self.pause(other)
            assert self.run(request_id, max(1, self.computed[request_id]))
            self.free(request_id)
        self.device.execute(self.pool.take_operations())
        self.pool.check_integrity()
        assert self.pool.num_free == self.pool.num_blocks
        assert self.pool.num_host_slots_free == self.pool.num_host_slots

    def free(self, request_id: str) -> None:
        self.pool.free(request_id)
        self.forget(request_id)

    def forget(self, request_id: str) -> None:
        del self.tokens[request_id], self.computed[request_id], self.kinds[request_id]
        self.paused.discard(request_id)

    def _fits(self, request_id: str, target: int) -> bool:
        """False also where an earlier one of the step took its KV."""
        return request_id in self.tokens and self.grow(request_id, target)


def started(bench: Bench, request_id: str, kind: Kind, num_tokens: int, first: int = 0) -> None:
    """A request of its own tokens, all computed."""
    bench.add(request_id, kind, list(range(first, first + num_tokens)))
    assert bench.run(request_id, num_tokens)


def test_two_requests_share_a_block_from_both_ends() -> None:
    bench = Bench(num_blocks=1)
    started(bench, "off", Kind.OFFLINE, 2)
    started(bench, "on", Kind.ONLINE, 2, first=50)
    assert bench.pool.table("on") == bench.pool.table("off") == [0]
    assert bench.paused == set() and bench.pool.num_free == 0
    assert bench.pool.owners() == BlockOwners(shared=1)
    bench.check_reads("off", 2, bench.device)
    bench.pool.check_integrity()


def test_only_overwritten_slots_are_checkpointed_and_the_latest_first() -> None:
    bench = Bench(num_blocks=1)
    started(bench, "off", Kind.OFFLINE, 3)
    started(bench, "on", Kind.ONLINE, 1, first=50)
    bench.tokens["on"] += [51, 52]
    assert bench.pool.preemption_table() == []
    assert bench.run("on", 2) and bench.paused == {"off"}
    (entry,) = bench.pool.preemption_table()
    assert (entry.block_id, entry.online, entry.offline, list(entry.checkpointed)) == (0, ["on"], ["off"], [2])
    assert bench.run("on", 3)
    (entry,) = bench.pool.preemption_table()
    assert sorted(entry.checkpointed) == [1, 2] and bench.pool.num_missing_slots("off") == 2
    bench.tokens["off"].append(9)
    assert not bench.run("off", 4), "it is not whole and cannot be"
    bench.free("on")
    assert bench.run("off", 4), "restored in place"
    assert bench.pool.preemption_table() == [] and bench.pool.num_host_slots_free == 100


def test_a_preempted_block_moves_to_a_free_one() -> None:
    bench = Bench(num_blocks=2)
    started(bench, "off", Kind.OFFLINE, 3)
    started(bench, "other", Kind.ONLINE, 4, first=20)
    started(bench, "on", Kind.ONLINE, 1, first=50)
    bench.tokens["on"].append(51)
    assert bench.run("on", 2)
    bench.free("other")
    bench.tokens["off"].append(9)
    assert bench.run("off", 4)
    assert bench.pool.table("on") != bench.pool.table("off")
    bench.check_reads("on", 2, bench.device)
    bench.pool.check_integrity()


def test_an_offline_request_moves_away_from_slots_that_its_peer_has() -> None:
    bench = Bench(num_blocks=2)
    started(bench, "full", Kind.ONLINE, 4, first=20)
    started(bench, "off", Kind.OFFLINE, 2)
    started(bench, "on", Kind.ONLINE, 2, first=50)
    bench.tokens["off"].append(9)
    assert not bench.run("off", 3) and bench.paused == set(), "held"
    bench.free("full")
    assert bench.run("off", 3), "moved"
    assert bench.pool.table("on") != bench.pool.table("off")


def test_blocks_of_paused_requests_go_to_anybody_with_the_most_empty_slots_first() -> None:
    bench = Bench(num_blocks=3)
    started(bench, "off", Kind.OFFLINE, 10)
    tables = list(bench.pool.table("off"))
    bench.pool.pause("off")
    assert (bench.pool.num_free, bench.pool.num_offline_only) == (3, 0)
    assert bench.pool.owners() == BlockOwners(paused=3)
    started(bench, "on", Kind.ONLINE, 2, first=50)
    assert bench.pool.table("on") == tables[2:], "its last block had two empty slots"
    assert bench.pool.num_missing_slots("off") == 0
    started(bench, "late", Kind.OFFLINE, 4, first=70)
    assert bench.pool.table("late") == tables[1:2], "the younger of its two full blocks"
    assert bench.pool.num_missing_slots("off") == 4
    assert bench.pool.owners() == BlockOwners(shared=1, offline=1, paused=1)
    bench.free("on")
    bench.free("late")
    assert bench.pool.owners() == BlockOwners(paused=2, cached=1)
    assert bench.run("off", 10)


def test_an_active_request_keeps_its_blocks_until_it_is_paused() -> None:
    bench = Bench(num_blocks=2)
    started(bench, "off", Kind.OFFLINE, 8)
    assert (bench.pool.num_free, bench.pool.num_offline_only) == (0, 2)
    bench.add("on", Kind.ONLINE, [50, 51])
    assert not bench.run("on", 2)
    bench.pool.pause("off")
    assert bench.run("on", 2) and bench.pool.num_missing_slots("off") == 2


def test_a_prefix_is_found_by_requests_of_the_same_kind_only() -> None:
    bench = Bench()
    started(bench, "off", Kind.OFFLINE, 9)
    assert bench.pool.start("on", Kind.ONLINE, list(range(9))) == 0
    assert bench.pool.start("late", Kind.OFFLINE, list(range(9))) == 8


@pytest.mark.parametrize("keeps_online", [False, True])
def test_online_contents_outlive_offline_churn_where_they_are_kept(keeps_online: bool) -> None:
    bench = Bench(keeps_online=keeps_online)
    started(bench, "chat", Kind.ONLINE, 12)
    bench.free("chat")
    for number in range(20):
        started(bench, "churn", Kind.OFFLINE, 16, first=100 * number)
        bench.free("churn")
        bench.check()
    assert bench.pool.start("again", Kind.ONLINE, list(range(13))) == (12 if keeps_online else 0)


def test_a_shared_block_is_given_up_when_all_who_share_it_are_paused_and_checkpointed_once() -> None:
    bench = Bench(num_blocks=3)
    started(bench, "a", Kind.OFFLINE, 5)
    bench.add("b", Kind.OFFLINE, [0, 1, 2, 3, 90])
    assert bench.computed["b"] == 4 and bench.run("b", 5)
    bench.pool.pause("a")
    assert bench.pool.num_free == 1, "b still reads the shared one"
    bench.pool.pause("b")
    assert bench.pool.num_free == 3
    started(bench, "on", Kind.ONLINE, 12, first=50)
    shared, *_ = [entry for entry in bench.pool.preemption_table() if entry.offline == ["a", "b"]]
    assert sorted(shared.checkpointed) == [0, 1, 2, 3] and shared.block_id is None
    assert bench.pool.num_host_slots_free == 100 - 6
    bench.free("on")
    assert bench.run("b", 5)
    assert bench.pool.num_missing_slots("a") == 1, "the shared block is whole for both"
    assert bench.run("a", 5)


def test_with_a_full_host_the_owner_is_dropped() -> None:
    bench = Bench(num_blocks=2, num_host_slots=3)
    started(bench, "off", Kind.OFFLINE, 8)
    bench.pool.pause("off")
    started(bench, "on", Kind.ONLINE, 8, first=50)
    assert "off" not in bench.tokens and bench.pool.preemption_table() == []
    bench.free("on")
    bench.device.execute(bench.pool.take_operations())
    assert bench.pool.num_host_slots_free == 3 and bench.pool.num_free == 2


def test_what_comes_and_goes_between_two_steps_is_not_copied() -> None:
    bench = Bench(num_blocks=1)
    started(bench, "off", Kind.OFFLINE, 3)
    bench.pool.pause("off")
    bench.add("on", Kind.ONLINE, [50, 51, 52])
    assert bench.pool.grow("on", 3)
    bench.free("on")
    assert bench.pool.grow("off", 3)
    assert not bench.pool.take_operations()
    bench.check_reads("off", 3, bench.device)


def test_failed_operations_void_what_they_wrote() -> None:
    bench = Bench(num_blocks=2)
    started(bench, "off", Kind.OFFLINE, 7)
    bench.pool.pause("off")
    bench.add("on", Kind.ONLINE, [50])
    assert bench.pool.grow("on", 1)
    assert bench.pool.void(bench.pool.take_operations(), []) == []
    bench.add("more", Kind.ONLINE, [60, 61, 62, 63])
    assert bench.pool.grow("more", 4)
    assert bench.pool.void(bench.pool.take_operations(), []) == ["off"]


def test_starting_twice_is_refused() -> None:
    bench = Bench()
    bench.pool.start("a", Kind.ONLINE, [1])
    with pytest.raises(ValueError, match="a has blocks already"):
        bench.pool.start("a", Kind.ONLINE, [1])


NUM_BLOCKS, NUM_HOST_SLOTS = 6, 16


class BidirectionalMachine(RuleBasedStateMachine):
    """Few distinct tokens, so that prefixes are often shared; few blocks and host slots; steps that overlap."""

    keeps_online = False

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(NUM_BLOCKS, NUM_HOST_SLOTS, self.keeps_online)
        self.count = 0

    def at_rest(self) -> list[str]:
        return [request_id for request_id in self.bench.tokens if request_id not in self.bench.in_flight]

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=13), kind=st.sampled_from(Kind))
    def start(self, tokens: list[int], kind: Kind) -> None:
        self.count += 1
        self.bench.add(str(self.count), kind, tokens)
        self.bench.launch({str(self.count): len(tokens)})

    @precondition(lambda self: self.at_rest())
    @rule(data=st.data(), chunk=st.integers(1, 6))
    def launch(self, data: st.DataObject, chunk: int) -> None:
        targets = {}
        for request_id in data.draw(st.permutations(self.at_rest())):
            computed, tokens = self.bench.computed[request_id], self.bench.tokens[request_id]
            if computed == len(tokens):
                tokens.append(chunk % 2)
            targets[request_id] = min(computed + chunk, len(tokens))
        self.bench.launch(targets)

    @precondition(lambda self: self.at_rest())
    @rule(data=st.data())
    def grow_and_give_up(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(self.at_rest()))
        if self.bench.grow(request_id, self.bench.computed[request_id] + 5):
            self.bench.give_up(request_id)

    @precondition(lambda self: self.bench.in_flight)
    @rule(keep=st.integers(0, 2))
    def finish(self, keep: int) -> None:
        for request_id in self.bench.in_flight[keep:]:
            self.bench.finish(request_id)

    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        offline = [request_id for request_id in self.at_rest() if self.bench.kinds[request_id] is Kind.OFFLINE]
        if offline:
            self.bench.pause(data.draw(st.sampled_from(offline)))

    @precondition(lambda self: len(self.at_rest()) > 4)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.bench.free(data.draw(st.sampled_from(self.at_rest())))

    @invariant()
    def holds_together(self) -> None:
        self.bench.check()

    def teardown(self) -> None:
        self.bench.wind_up()


class KeepingMachine(BidirectionalMachine):
    keeps_online = True


TestBidirectionalMachine = BidirectionalMachine.TestCase
TestKeepingMachine = KeepingMachine.TestCase
TestBidirectionalMachine.settings = settings(max_examples=80, stateful_step_count=40)
TestKeepingMachine.settings = settings(max_examples=30, stateful_step_count=40)


@pytest.mark.parametrize("seed", range(12))
def test_long_runs_under_pressure(seed: int) -> None:
    """More than a machine of limited steps reaches: thousands of steps, nearly always without a free block."""
    rng = random.Random(seed)
    bench = Bench(rng.choice([4, 8, 12]), rng.choice([6, 30, 200]), keeps_online=seed % 3 == 0)
    swapped = 0
    for count in range(400):
        for kind in Kind:
            if sum(other is kind for other in bench.kinds.values()) < 4:
                first = rng.randint(0, 1)
                bench.add(f"{kind.name}-{count}", kind, [first, *(rng.choice([0, 0, 0, 1]) for _ in range(12))])
        at_rest = [request_id for request_id in bench.tokens if request_id not in bench.in_flight]
        rng.shuffle(at_rest)
        targets = {}
        for request_id in at_rest[: rng.randint(0, 5)]:
            if bench.computed[request_id] == len(bench.tokens[request_id]):
                bench.tokens[request_id].append(rng.randint(0, 1))
            left = len(bench.tokens[request_id]) - bench.computed[request_id]
            targets[request_id] = bench.computed[request_id] + rng.randint(1, left)
        if not bench.launch(targets) and at_rest:
            bench.free(rng.choice([request_id for request_id in at_rest if request_id in bench.tokens]))
        for request_id in at_rest:
            if request_id in bench.tokens and request_id not in bench.in_flight and rng.random() < 0.2:
                if rng.random() < 0.5 and bench.grow(request_id, bench.computed[request_id] + 1):
                    bench.give_up(request_id)
                elif bench.kinds[request_id] is Kind.OFFLINE and request_id in bench.tokens:
                    bench.pause(request_id)
        swapped += bench.pool.peek_operations().num_swapped
        for request_id in bench.in_flight[rng.randint(0, 2) :]:
            bench.finish(request_id)
            if len(bench.tokens[request_id]) > 20 or rng.random() < 0.05:
                bench.free(request_id)
        if count % 8 == 0:
            bench.check()
    assert swapped > 0
    bench.wind_up()
