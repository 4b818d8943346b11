"""Block identity, and what is told of a prefix cache."""

from array import array
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.kv.block_hash import HASH_BYTES, PLAIN, KVScope, block_hash, hash_chain, kv_scope, split_hashes
from shared.scheduling.kv.blocks import BlockPool
from shared.scheduling.kv.prefix_cache import (
    MAX_EARLY,
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


def test_hashes_that_stand_one_behind_the_other_are_split() -> None:
    assert split_hashes(A + B) == split_hashes(A + B + A[:-1]) == [A, B]
    assert split_hashes(b"") == split_hashes(A[:5]) == []


def test_a_scope_is_what_it_is_made_of_and_the_same_object_for_all_that_are_alike() -> None:
    kv_scope.cache_clear()
    for num_top, adapter in product((None, 0, 3), ("", "sql")):
        scope = kv_scope(num_top, adapter)
        assert scope == KVScope(num_top, adapter) and kv_scope(num_top, adapter) is scope
    assert kv_scope(None, "") is PLAIN


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
    assert start(bench.pool, "alike", Kind.OFFLINE, range(3 * BLOCK)) == BLOCK
    bench.pool.free("alike")
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


STATES = st.lists(st.dictionaries(st.integers(0, 5), st.booleans()), min_size=1, max_size=10)  # by version, from 1 on


@given(STATES, st.data())
def test_what_is_told_late_or_not_at_all_is_never_mistaken(states: list[dict[int, bool]], data: st.DataObject) -> None:
    """Some messages are lost; whole ones come after some of those that go on from them. Blocks are held or free."""
    states, mirror, heard = [{}, *states], PrefixCacheMirror(), dict[int, None]()
    for version in range(1, len(states)):
        if data.draw(st.booleans()):
            heard[version] = None
            assert mirror.apply(told(version, states[version - 1], states[version])) is not mirror.is_stale
        if data.draw(st.booleans()):
            of = data.draw(st.integers(1, version))
            assert mirror.apply(told(of, {}, states[of], is_whole=True)) is not mirror.is_stale
            assert mirror.version >= of
            if all(each in heard for each in range(of + 1, version + 1)):
                assert mirror.version == version and not mirror.is_stale
        known = {} if mirror.is_stale else states[mirror.version]
        for block in range(6):
            found = mirror.look_up([key(block)], Kind.ONLINE)
            assert found == ((1, known[block]) if block in known else (0, 0))
        assert len(mirror) == len(known)


def key(block: int) -> bytes:
    return bytes([block]) * HASH_BYTES


def told(version: int, before: dict[int, bool], after: dict[int, bool], is_whole: bool = False) -> CacheChanges:
    held = b"".join(key(block) for block, is_held in after.items() if is_held)
    free = b"".join(key(block) for block, is_held in after.items() if not is_held)
    gone = b"".join(key(block) for block in before if block not in after)
    blocks = () if is_whole and not after else (BlockChanges(held, free, gone),)
    return CacheChanges(version, is_whole, blocks)


@pytest.mark.parametrize("of", ["held", "free", "gone"])
def test_a_part_of_a_hash_is_refused(of: str) -> None:
    assert BlockChanges(**{of: A + B}) != BlockChanges(**{of: A})
    with pytest.raises(ValueError, match=f"hashes have {HASH_BYTES} bytes each"):
        BlockChanges(**{of: A + B[:-1]})


def test_what_goes_on_from_a_whole_message_and_came_before_it_is_not_lost() -> None:
    mirror = PrefixCacheMirror()
    for version, changes in ((3, BlockChanges(held=A)), (4, BlockChanges(held=B)), (5, BlockChanges(free=A))):
        assert not mirror.apply(CacheChanges(version, False, (changes,)))
    assert mirror.apply(CacheChanges(2, True, (BlockChanges(free=B),)))
    assert (mirror.version, mirror.look_up([A, B], Kind.ONLINE)) == (5, (2, 1))


def test_what_was_never_told_may_be_gone() -> None:
    mirror = PrefixCacheMirror()
    assert mirror.apply(CacheChanges(1, False, (BlockChanges(held=A, gone=B),)))
    assert mirror.look_up([A, B], Kind.ONLINE) == (1, 1)


def test_no_more_than_so_many_messages_are_kept_for_a_whole_one() -> None:
    mirror, last = PrefixCacheMirror(), MAX_EARLY + 2
    for version in range(2, last + 1):  # one too many, and the first of all is lost
        assert not mirror.apply(CacheChanges(version, False, (BlockChanges(held=A),)))
    assert not mirror.apply(CacheChanges(1, True, (BlockChanges(held=A),))), "the second is forgotten"
    assert mirror.apply(CacheChanges(last, True, (BlockChanges(held=A),)))


def test_a_gap_is_noticed_by_a_message_without_changes() -> None:
    mirror = PrefixCacheMirror()
    assert mirror.apply(CacheChanges(0))
    assert not mirror.apply(CacheChanges(1)) and mirror.is_stale
