"""The bidirectional pool under whatever is done to it: no slot has two owners, nothing is read before it is back, and
nothing is left in the end."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.scheduling.request import Kind
from tests.shared.scheduling.kv.bidirectional_bench import Bench
from tests.shared.scheduling.kv.cache_listeners import CacheListeners

NUM_BLOCKS, NUM_HOST_SLOTS = 6, 16


class BidirectionalMachine(RuleBasedStateMachine):
    """Few distinct tokens, so that prefixes are often shared; few blocks and host slots; steps that overlap."""

    eviction = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(NUM_BLOCKS, NUM_HOST_SLOTS, self.eviction)
        self.listeners = CacheListeners(self.bench.pool)
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

    @precondition(lambda self: self.bench.pool.peek_operations())
    @rule()
    def fail(self) -> None:
        self.bench.fail()

    @precondition(lambda self: len(self.at_rest()) > 4)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.bench.free(data.draw(st.sampled_from(self.at_rest())))

    @rule(tokens=st.lists(st.integers(0, 1), max_size=13), is_lost=st.booleans())
    def tell(self, tokens: list[int], is_lost: bool) -> None:
        self.listeners.tell(tokens, is_lost)

    @rule(tokens=st.lists(st.integers(0, 1), max_size=13))
    def join(self, tokens: list[int]) -> None:
        self.listeners.join(tokens)

    @invariant()
    def holds_together(self) -> None:
        self.bench.check()

    def teardown(self) -> None:
        self.bench.wind_up()


class KeepingMachine(BidirectionalMachine):
    eviction = "online-first"


TestBidirectionalMachine = BidirectionalMachine.TestCase
TestKeepingMachine = KeepingMachine.TestCase
TestBidirectionalMachine.settings = settings(max_examples=80, stateful_step_count=40)
TestKeepingMachine.settings = settings(max_examples=30, stateful_step_count=40)


@pytest.mark.parametrize("seed", range(12))
def test_long_runs_under_pressure(seed: int) -> None:
    """More than a machine of limited steps reaches: thousands of steps, nearly always without a free block."""
    rng = random.Random(seed)
    bench = Bench(rng.choice([4, 8, 12]), rng.choice([6, 30, 200]), ("online-first", "task-aware", "lru")[seed % 3])
    listeners = CacheListeners(bench.pool)
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
        operations = bench.pool.peek_operations()
        swapped += len(operations.restores) + len(operations.checkpoints)
        for request_id in bench.in_flight[rng.randint(0, 2) :]:
            bench.finish(request_id)
            if len(bench.tokens[request_id]) > 20 or rng.random() < 0.05:
                bench.free(request_id)
        if count % 8 == 0:
            bench.check()
            listeners.join([rng.choice([0, 0, 0, 1]) for _ in range(12)])
    assert swapped > 0
    bench.wind_up()
