"""The block pool against a naive model, and prefix caching."""

from dataclasses import astuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.kv.blocks import BlockPool
from shared.scheduling.kv.eviction.evictions import EVICTIONS, make_eviction
from shared.scheduling.kv.eviction.lru import Lru
from shared.scheduling.kv.eviction.online_first import OnlineFirst
from shared.scheduling.kv.pool import BlockOwners, KVPool
from shared.scheduling.kv.prefix_cache import CachedPrefix, PrefixCacheMirror
from shared.scheduling.limits import Limits
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
from tests.shared.scheduling.kv.cache_listeners import CacheListeners, commit, start, start_as_looked_up

BLOCK = 4


def started(pool: KVPool, request_id: str, token_ids: list[int], kind: Kind = Kind.ONLINE) -> int:
    """Start a request and compute all its tokens; returns how many came from the cache."""
    cached = start(pool, request_id, kind, token_ids)
    assert pool.grow(request_id, len(token_ids))
    commit(pool, request_id, token_ids, len(token_ids))
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
    assert start(pool, "b", Kind.ONLINE, list(range(8))) == 4


def test_a_prefix_with_another_beginning_is_another() -> None:
    pool = BlockPool(16, BLOCK)
    started(pool, "a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert started(pool, "b", [0, 2, 3, 4, 5, 6, 7, 8, 9]) == 0


def test_uncommitted_blocks_are_not_found() -> None:
    pool = BlockPool(16, BLOCK)
    start(pool, "a", Kind.ONLINE, list(range(9)))
    pool.grow("a", 9)
    assert start(pool, "b", Kind.ONLINE, list(range(9))) == 0


@pytest.mark.parametrize("kv_sharing", ["recompute", "bidirectional"])
def test_withdrawn_blocks_are_not_found_until_they_are_committed_again(kv_sharing: str) -> None:
    pool, tokens = Strategy(kv_sharing=kv_sharing).make_pool(Limits(BLOCK, 16, 512, 8), 0), list(range(13))
    started(pool, "a", tokens)
    assert start(pool, "b", Kind.ONLINE, tokens) == 12
    pool.withdraw("a", 6)
    pool.check_integrity()
    assert start(pool, "c", Kind.ONLINE, tokens) == 4
    pool.free("b")
    commit(pool, "a", tokens, 12)
    assert start(pool, "d", Kind.ONLINE, tokens) == 12
    pool.withdraw("stranger", 0)
    pool.check_integrity()


def test_growth_beyond_the_pool_changes_nothing() -> None:
    pool = BlockPool(4, BLOCK)
    started(pool, "a", list(range(10)))
    start(pool, "b", Kind.ONLINE, [1])
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
    assert start(pool, "old", Kind.ONLINE, [1] * 9) == 4
    assert start(pool, "new", Kind.ONLINE, [2] * 9) == 8


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


def test_every_block_has_one_owner() -> None:
    pool = BlockPool(16, BLOCK)
    assert pool.owners() == BlockOwners(empty=16)
    started(pool, "off", list(range(9)), Kind.OFFLINE)
    assert pool.owners() == BlockOwners(offline=3, empty=13)
    started(pool, "on", list(range(9)))
    assert pool.owners() == BlockOwners(online=1, shared=2, offline=1, empty=12)
    pool.free("off")
    assert pool.owners() == BlockOwners(online=3, empty=13)
    pool.free("on")
    assert pool.owners() == BlockOwners(cached=2, empty=14)
    started(pool, "all", [100 + token for token in range(16 * BLOCK)], Kind.OFFLINE)
    assert pool.owners() == BlockOwners(offline=16)


def test_starting_twice_is_refused() -> None:
    pool = BlockPool(4, BLOCK)
    start(pool, "a", Kind.ONLINE, [1])
    with pytest.raises(ValueError, match="a has blocks already"):
        start(pool, "a", Kind.ONLINE, [1])


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_online_contents_outlive_offline_churn_where_they_are_kept(eviction: str) -> None:
    pool = BlockPool(8, BLOCK, make_eviction(eviction))
    prefix = list(range(4 * BLOCK))
    started(pool, "chat", prefix)
    pool.free("chat")
    for number in range(20):
        started(pool, "churn", [100 + number] * 4 * BLOCK, Kind.OFFLINE)
        pool.free("churn")
    assert start(pool, "again", Kind.ONLINE, [*prefix, 1]) == (len(prefix) if eviction != "lru" else 0)
    pool.check_integrity()


def test_online_contents_go_when_nothing_else_is_left_the_least_recently_used_first() -> None:
    pool = BlockPool(4, BLOCK, OnlineFirst())
    for request_id, token in (("old", 1), ("new", 2)):
        started(pool, request_id, [token] * 2 * BLOCK)
        pool.free(request_id)
    started(pool, "offline", [3] * 3 * BLOCK, Kind.OFFLINE)
    assert start(pool, "old", Kind.ONLINE, [1] * 9) == 0
    assert start(pool, "new", Kind.ONLINE, [2] * 9) == BLOCK


def test_what_an_offline_request_finds_of_an_online_one_stays_online() -> None:
    pool = BlockPool(4, BLOCK, OnlineFirst())
    started(pool, "chat", [1] * 2 * BLOCK)
    pool.free("chat")
    assert started(pool, "alike", [1] * 3 * BLOCK, Kind.OFFLINE) == 2 * BLOCK
    pool.free("alike")
    started(pool, "churn", [3] * 2 * BLOCK, Kind.OFFLINE)
    assert start(pool, "again", Kind.ONLINE, [1] * 3 * BLOCK) == 2 * BLOCK


def test_what_was_online_is_not_after_other_contents() -> None:
    pool = BlockPool(3, BLOCK, OnlineFirst())
    started(pool, "chat", [1] * 2 * BLOCK)
    pool.free("chat")
    started(pool, "offline", [2] * 3 * BLOCK, Kind.OFFLINE)
    pool.free("offline")
    started(pool, "chat", [1] * BLOCK)
    pool.free("chat")
    started(pool, "churn", [3] * 2 * BLOCK, Kind.OFFLINE)
    assert start(pool, "again", Kind.ONLINE, [1] * BLOCK + [0]) == BLOCK


class PoolMachine(RuleBasedStateMachine):
    """Random requests over few distinct tokens, so that prefixes are often shared; and blocks are taken in the order
    that a list of all free ones gives, sorted anew each time."""

    eviction = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, BLOCK, make_eviction(self.eviction))
        self.listeners = CacheListeners(self.pool)
        self.live: dict[str, list[int]] = {}
        self.kinds: dict[str, Kind] = {}
        self.contents: dict[int, tuple[int, ...]] = {}  # block id -> all tokens up to its end, as computed
        self.found: dict[tuple[int, ...], int] = {}  # contents of full blocks -> the block that is found by them
        self.online: set[int] = set()  # blocks whose contents an online request has held
        self.free = {block_id: block_id for block_id in range(12)}  # block id -> its turn
        self.count = 0

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20), kind=st.sampled_from(Kind))
    def start(self, tokens: list[int], kind: Kind) -> None:
        self.count += 1
        request_id = str(self.count)
        cached = start_as_looked_up(self.pool, request_id, kind, tokens)
        assert cached % BLOCK == 0 and cached < len(tokens)
        self.live[request_id], self.kinds[request_id] = tokens, kind
        table = self.pool.table(request_id)
        self._hold(table, kind)
        for index in range(cached // BLOCK):
            assert self.contents[table[index]] == tuple(tokens[: (index + 1) * BLOCK])
        if self._grow(request_id, len(tokens)):
            self._compute(request_id, tokens, cached)
        else:
            self._free(request_id)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def extend(self, data: st.DataObject, more: list[int]) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        tokens = [*self.live[request_id], *more]
        if self._grow(request_id, len(tokens)):
            self._compute(request_id, tokens, len(self.live[request_id]))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self._free(data.draw(st.sampled_from(sorted(self.live))))

    def _grow(self, request_id: str, num_slots: int) -> bool:
        order = sorted(self.free, key=lambda block_id: (self._is_kept(block_id), self.free[block_id]))
        num_before = len(self.pool.table(request_id))
        has_grown = self.pool.grow(request_id, num_slots)
        assert has_grown == (-(-num_slots // BLOCK) <= num_before + len(order))
        taken = self.pool.table(request_id)[num_before:]
        assert taken == order[: len(taken)]
        self.found = {contents: block_id for contents, block_id in self.found.items() if block_id not in taken}
        self.online.difference_update(taken)
        self._hold(taken, self.kinds[request_id])
        return has_grown

    def _is_kept(self, block_id: int) -> bool:
        return self.eviction != "lru" and block_id in self.found.values() and block_id in self.online

    def _hold(self, block_ids: list[int], kind: Kind) -> None:
        for block_id in block_ids:
            self.free.pop(block_id, None)
            if kind is Kind.ONLINE:
                self.online.add(block_id)

    def _free(self, request_id: str) -> None:
        del self.live[request_id]
        table = list(self.pool.table(request_id))
        self.pool.free(request_id)
        held = {block_id for other in self.live for block_id in self.pool.table(other)}
        for block_id in reversed(table):
            if block_id not in held:
                self.count += 1
                self.free[block_id] = 100 + self.count if block_id in self.found.values() else -self.count

    def _compute(self, request_id: str, tokens: list[int], start: int) -> None:
        table = self.pool.table(request_id)
        for index in range(start // BLOCK, -(-len(tokens) // BLOCK)):
            self.contents[table[index]] = tuple(tokens[: (index + 1) * BLOCK])
        commit(self.pool, request_id, tokens, len(tokens))
        self.live[request_id] = tokens
        for index in range(start // BLOCK, len(tokens) // BLOCK):
            if table[index] not in self.found.values():
                self.found.setdefault(tuple(tokens[: (index + 1) * BLOCK]), table[index])

    @rule(tokens=st.lists(st.integers(0, 1), max_size=13), is_lost=st.booleans())
    def tell(self, tokens: list[int], is_lost: bool) -> None:
        self.listeners.tell(tokens, is_lost)

    @rule(tokens=st.lists(st.integers(0, 1), max_size=13))
    def join(self, tokens: list[int]) -> None:
        self.listeners.join(tokens)

    @invariant()
    def holds_together(self) -> None:
        self.pool.check_integrity()
        assert sum(astuple(self.pool.owners())) == self.pool.num_blocks
        for request_id, tokens in self.live.items():
            for index, block_id in enumerate(self.pool.table(request_id)):
                assert self.contents[block_id] == tuple(tokens[: (index + 1) * BLOCK])


class KeepingMachine(PoolMachine):
    eviction = "online-first"


class UntoldMachine(PoolMachine):
    eviction = "task-aware"


TestPoolMachine = PoolMachine.TestCase
TestKeepingMachine = KeepingMachine.TestCase
TestUntoldMachine = UntoldMachine.TestCase
TestPoolMachine.settings = TestKeepingMachine.settings = settings(max_examples=30, stateful_step_count=40)
TestUntoldMachine.settings = settings(max_examples=30, stateful_step_count=40)


def test_a_snapshot_is_of_what_was_last_told() -> None:
    """Whatever was withdrawn, let go of and held since."""
    pool, tokens, told = BlockPool(16, BLOCK), list(range(13)), PrefixCacheMirror()
    started(pool, "a", tokens)
    started(pool, "b", [7] * 9)
    assert told.apply(pool.take_cache_changes())
    pool.withdraw("a", 6)
    pool.free("b")
    late = PrefixCacheMirror()
    assert late.apply(pool.cache_snapshot()) and late.version == told.version
    for each in (tokens, [7] * 9):
        hashes = hash_chain(each, BLOCK)
        assert late.look_up(hashes, Kind.ONLINE) == told.look_up(hashes, Kind.ONLINE) != CachedPrefix(0, 0)


def test_hits_are_of_the_contents_not_of_the_block() -> None:
    """What is written over them has none."""
    hits: list[int] = []

    class Recording(Lru):
        def let_go(self, block_id: int, key: bytes, kind: Kind, num_hits: int) -> None:
            hits.append(num_hits)
            super().let_go(block_id, key, kind, num_hits)

    pool = BlockPool(3, BLOCK, Recording())
    for request_id, first, num_cached in (("a", 0, 0), ("b", 0, 8), ("c", 0, 8), ("d", 50, 0), ("e", 50, 8)):
        assert started(pool, request_id, list(range(first, first + 9))) == num_cached
        pool.free(request_id)
        pool.free(request_id)
    assert hits == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1], "freed twice is free once"
