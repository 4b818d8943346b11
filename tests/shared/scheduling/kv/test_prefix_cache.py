"""Block identity, and what is told of a prefix cache."""

from array import array

import msgspec

from shared.scheduling.kv.block_hash import HASH_BYTES, block_hash, hash_chain
from shared.scheduling.kv.blocks import BlockPool
from shared.scheduling.kv.prefix_cache import (
    BlockChanges,
    CacheChanges,
    CachedPrefix,
    PrefixCacheMirror,
)
from shared.scheduling.request import Kind
from tests.shared.scheduling.kv.bidirectional_bench import BLOCK, Bench, started
from tests.shared.scheduling.kv.cache_listeners import commit, start

A, B = b"a" * HASH_BYTES, b"b" * HASH_BYTES


def test_a_chain_is_of_full_blocks_each_after_the_one_before() -> None:
    tokens = list(range(10))
    chain = hash_chain(tokens, 4)
    assert chain == [block_hash(b"", tokens[:4]), block_hash(chain[0], tokens[4:8])]
    assert hash_chain(array("I", tokens).tobytes(), 4) == chain
    assert hash_chain(tokens, 4, max_blocks=1) == chain[:1] and hash_chain([1], 4) == []
    assert all(len(key) == HASH_BYTES for key in chain) and hash_chain([1, *tokens[1:]], 4)[1] != chain[1]


def test_nothing_to_tell_costs_next_to_nothing() -> None:
    pool = BlockPool(4, BLOCK)
    assert pool.take_cache_changes() == CacheChanges(0)
    started_and_freed(pool)
    assert pool.take_cache_changes().version == 1
    assert pool.take_cache_changes() == CacheChanges(1)
    assert len(msgspec.msgpack.encode(CacheChanges(1))) <= 4


def started_and_freed(pool: BlockPool) -> None:
    tokens = list(range(2 * BLOCK))
    start(pool, "a", Kind.ONLINE, tokens)
    pool.grow("a", len(tokens))
    commit(pool, "a", tokens, len(tokens))
    pool.free("a")


def test_what_comes_and_goes_in_between_is_not_told() -> None:
    pool = BlockPool(2, BLOCK)
    started_and_freed(pool)
    start(pool, "b", Kind.ONLINE, [90])
    pool.grow("b", 2 * BLOCK)
    assert pool.take_cache_changes() == CacheChanges(0)


def test_a_page_that_is_not_whole_is_not_found_and_a_paused_one_is_free() -> None:
    bench, mirror = Bench(num_blocks=2), PrefixCacheMirror()
    hashes = hash_chain(list(range(2 * BLOCK)), BLOCK)

    def found() -> CachedPrefix:
        assert mirror.apply(bench.pool.take_cache_changes())
        assert mirror.look_up(hashes, Kind.ONLINE) == CachedPrefix(0, 0), "offline blocks are read the other way"
        assert mirror.look_up(hashes, Kind.OFFLINE) == bench.pool.look_up(hashes, Kind.OFFLINE)
        return mirror.look_up(hashes, Kind.OFFLINE)

    started(bench, "off", Kind.OFFLINE, 2 * BLOCK)
    assert found() == (2, 2)
    bench.pause("off")
    assert found() == (2, 0)
    started(bench, "on", Kind.ONLINE, 1, first=50)
    assert found() == (1, 0)
    bench.free("on")
    bench.tokens["off"].append(9)
    bench.run("off", 2 * BLOCK)
    assert found() == (2, 2)
    bench.free("off")
    assert found() == (2, 0)


def test_a_gap_is_noticed_and_a_whole_message_heals_it() -> None:
    mirror = PrefixCacheMirror()
    assert mirror.apply(CacheChanges(1, False, (BlockChanges(held=A),)))
    assert mirror.look_up([A, B], Kind.ONLINE) == (1, 1)
    assert not mirror.apply(CacheChanges(3, False, (BlockChanges(free=B),))) and mirror.is_stale
    assert not mirror.apply(CacheChanges(4, False, (BlockChanges(free=B),)))
    assert mirror.look_up([A, B], Kind.ONLINE) == CachedPrefix(0, 0)
    assert mirror.apply(CacheChanges(4, True, (BlockChanges(held=A, free=B),))) and not mirror.is_stale
    assert mirror.apply(CacheChanges(3, False, (BlockChanges(gone=B),))), "late"
    assert mirror.look_up([A, B], Kind.OFFLINE) == (2, 1)


def test_a_gap_is_noticed_by_a_message_without_changes() -> None:
    mirror = PrefixCacheMirror()
    assert mirror.apply(CacheChanges(0))
    assert not mirror.apply(CacheChanges(1)) and mirror.is_stale
