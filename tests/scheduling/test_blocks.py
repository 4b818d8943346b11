"""The block pool against a naive model, and prefix caching."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.scheduling.blocks import BlockPool
from shared.scheduling.request import Kind

BLOCK = 4


def started(pool: BlockPool, request_id: str, token_ids: list[int], kind: Kind = Kind.ONLINE) -> int:
    """Start a request and compute all its tokens; returns how many came from the cache."""
    cached = pool.start(request_id, kind, token_ids)
    assert pool.grow(request_id, len(token_ids))
    pool.commit(request_id, token_ids, len(token_ids))
    return cached


def test_a_prefix_is_found_while_held_and_after() -> None:
    pool = BlockPool(16, BLOCK)
    tokens = list(range(10))
    assert started(pool, "a", tokens) == 0
    assert started(pool, "b", tokens) == 8
    assert pool.table("a")[:2] == pool.table("b")[:2] and pool.table("a")[2] != pool.table("b")[2]
    pool.free("a")
    pool.free("b")
    assert pool.num_free == 16
    assert started(pool, "c", [*range(8), 99]) == 8
    pool.check_integrity()


def test_one_token_is_always_left_to_compute() -> None:
    pool = BlockPool(16, BLOCK)
    started(pool, "a", list(range(8)))
    assert pool.start("b", Kind.ONLINE, list(range(8))) == 4


def test_a_prefix_with_another_beginning_is_another() -> None:
    pool = BlockPool(16, BLOCK)
    started(pool, "a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert started(pool, "b", [0, 2, 3, 4, 5, 6, 7, 8, 9]) == 0


def test_uncommitted_blocks_are_not_found() -> None:
    pool = BlockPool(16, BLOCK)
    pool.start("a", Kind.ONLINE, list(range(9)))
    pool.grow("a", 9)
    assert pool.start("b", Kind.ONLINE, list(range(9))) == 0


def test_growth_beyond_the_pool_changes_nothing() -> None:
    pool = BlockPool(4, BLOCK)
    started(pool, "a", list(range(10)))
    pool.start("b", Kind.ONLINE, [1])
    assert not pool.grow("b", 2 * BLOCK)
    assert pool.num_free == 1 and pool.table("b") == []


def test_least_recently_used_goes_first_and_deep_blocks_before_shallow() -> None:
    pool = BlockPool(4, BLOCK)
    started(pool, "old", [1] * 8)
    pool.free("old")
    started(pool, "new", [2] * 8)
    pool.free("new")
    started(pool, "x", [3] * 3)
    pool.free("x")
    assert pool.start("old", Kind.ONLINE, [1] * 9) == 4
    assert pool.start("new", Kind.ONLINE, [2] * 9) == 8


def test_blocks_of_offline_requests_alone_are_counted() -> None:
    pool = BlockPool(16, BLOCK)
    started(pool, "off", list(range(9)), Kind.OFFLINE)
    assert pool.num_offline_only == 3
    started(pool, "on", list(range(9)))
    assert pool.num_offline_only == 1
    pool.free("on")
    assert pool.num_offline_only == 3
    pool.free("off")
    assert pool.num_offline_only == 0


def test_starting_twice_is_refused() -> None:
    pool = BlockPool(4, BLOCK)
    pool.start("a", Kind.ONLINE, [1])
    with pytest.raises(ValueError, match="a has blocks already"):
        pool.start("a", Kind.ONLINE, [1])


class PoolMachine(RuleBasedStateMachine):
    """Random requests over few distinct tokens, so that prefixes are often shared."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, BLOCK)
        self.live: dict[str, list[int]] = {}
        self.contents: dict[int, tuple[int, ...]] = {}  # block id -> all tokens up to its end, as computed
        self.count = 0

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20), kind=st.sampled_from(Kind))
    def start(self, tokens: list[int], kind: Kind) -> None:
        self.count += 1
        request_id = str(self.count)
        cached = self.pool.start(request_id, kind, tokens)
        assert cached % BLOCK == 0 and cached < len(tokens)
        for index in range(cached // BLOCK):
            assert self.contents[self.pool.table(request_id)[index]] == tuple(tokens[: (index + 1) * BLOCK])
        if self.pool.grow(request_id, len(tokens)):
            self._compute(request_id, tokens, cached)
        else:
            self.pool.free(request_id)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def extend(self, data: st.DataObject, more: list[int]) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        tokens = [*self.live[request_id], *more]
        if self.pool.grow(request_id, len(tokens)):
            self._compute(request_id, tokens, len(self.live[request_id]))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        del self.live[request_id]
        self.pool.free(request_id)

    def _compute(self, request_id: str, tokens: list[int], start: int) -> None:
        table = self.pool.table(request_id)
        for index in range(start // BLOCK, -(-len(tokens) // BLOCK)):
            self.contents[table[index]] = tuple(tokens[: (index + 1) * BLOCK])
        self.pool.commit(request_id, tokens, len(tokens))
        self.live[request_id] = tokens

    @invariant()
    def holds_together(self) -> None:
        self.pool.check_integrity()
        for request_id, tokens in self.live.items():
            for index, block_id in enumerate(self.pool.table(request_id)):
                assert self.contents[block_id] == tuple(tokens[: (index + 1) * BLOCK])


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
