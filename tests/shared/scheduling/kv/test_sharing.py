"""What each KV sharing decides."""

import pytest

from shared.scheduling.kv.eviction.lru import Lru
from shared.scheduling.kv.sharing import KV_SHARINGS, kv_sharing_named
from shared.scheduling.limits import Limits
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
from tests.shared.replica.factories import KV_STRATEGIES
from tests.shared.scheduling.factories import make_decode, make_table
from tests.shared.scheduling.kv.cache_listeners import commit, start


@pytest.mark.parametrize(("name", "expected"), [("recompute", 7), ("bidirectional", 7), ("keep-resident", 0)])
def test_online_requests_may_take_what_no_step_in_flight_reads(name: str, expected: int) -> None:
    running = make_decode("running", Kind.OFFLINE, 100)
    running.num_in_flight_tokens = 1
    table = make_table(running, make_decode("resting", Kind.OFFLINE, 100), make_decode("on", context=100))
    sharing = kv_sharing_named(name)
    assert (
        sharing.num_offline_blocks(table.num_blocks(Kind.OFFLINE), table.num_blocks_in_flight(Kind.OFFLINE)) == expected
    )
    assert sharing.num_offline_blocks(5, table.num_blocks_in_flight(Kind.OFFLINE)) == 0, (
        "fewer than the tables say: some are shared"
    )


@pytest.mark.parametrize("name", KV_SHARINGS)
def test_a_request_that_could_be_paused_keeps_nothing_from_others_alone(name: str) -> None:
    pool = kv_sharing_named(name).make_pool(4, 4, 8, Lru())
    start(pool, "a", Kind.OFFLINE, range(8))
    assert pool.grow("a", 8)
    pool.unlock("a", 8)
    pool.pause("a")
    pool.pause("a")
    assert pool.num_kept_blocks("a") == pool.num_missing_slots("a") == 0


def test_blocks_are_filled_from_the_right_where_they_are_shared_from_both_ends() -> None:
    pools = {name: kv_sharing_named(name).make_pool(4, 4, 8, Lru()) for name in KV_SHARINGS}
    from_the_right = [(name, kind) for name, pool in pools.items() for kind in Kind if pool.fills_right(kind)]
    assert from_the_right == [("bidirectional", Kind.OFFLINE)]


def test_only_offline_requests_are_paused_and_only_where_blocks_are_shared_from_both_ends() -> None:
    paused = [(name, kind) for name in KV_SHARINGS for kind in Kind if KV_SHARINGS[name].is_paused_by_giving_way(kind)]
    assert paused == [("bidirectional", Kind.OFFLINE)]


@pytest.mark.parametrize("name", KV_SHARINGS)
@pytest.mark.parametrize("kind", Kind)
def test_every_pool_takes_a_request_through_its_life(name: str, kind: Kind) -> None:
    pool = kv_sharing_named(name).make_pool(4, 4, 8, Lru())
    assert start(pool, "a", kind, range(6)) == 0
    assert not pool.extend("a", 6) and pool.grow("a", 6)
    pool.unlock("a", 6)
    assert pool.extend("a", 8) and not pool.extend("a", 9)
    assert not pool.take_operations() and not pool.take_paused() and not pool.take_dropped()
    assert pool.num_free == 2 and pool.num_offline_only == (2 if kind is Kind.OFFLINE else 0)
    assert pool.num_held_online == (2 if kind is Kind.ONLINE else 0)
    assert pool.num_missing_slots("a") == 0, "it is whole"
    pool.unlock("a", 8)
    commit(pool, "a", range(8), 8)
    pool.free("a")
    assert start(pool, "b", kind, range(9)) == 8
    pool.check_integrity()


@pytest.mark.parametrize("name", KV_SHARINGS)
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("block_size", [1, 3])
def test_every_pool_leaves_a_token_to_compute(name: str, kind: Kind, block_size: int) -> None:
    pool = kv_sharing_named(name).make_pool(8, block_size, 8, Lru())
    start(pool, "a", kind, range(6))
    assert pool.grow("a", 6)
    pool.unlock("a", 6)
    commit(pool, "a", range(6), 6)
    found = [start(pool, f"first-{length}", kind, range(length)) for length in range(7)]
    assert found == [max(0, length - 1) // block_size * block_size for length in range(7)]
    pool.check_integrity()


@pytest.mark.parametrize("name", KV_SHARINGS)
def test_every_pool_tells_its_eviction_how_often_contents_were_found(name: str) -> None:
    """And begins anew where others were written over them."""
    hits: list[int] = []

    class Recording(Lru):
        def let_go(self, block_id: int, key: bytes, kind: Kind, num_hits: int) -> None:
            hits.append(num_hits)
            super().let_go(block_id, key, kind, num_hits)

    pool = kv_sharing_named(name).make_pool(2, 4, 8, Recording())
    for request_id, first, num_cached in (("a", 0, 0), ("b", 0, 4), ("c", 0, 4), ("d", 50, 0), ("e", 50, 4)):
        assert start(pool, request_id, Kind.OFFLINE, range(first, first + 8)) == num_cached
        assert pool.grow(request_id, 8)
        pool.unlock(request_id, 8)
        commit(pool, request_id, range(first, first + 8), 4)
        pool.free(request_id)
    assert hits == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("kv", KV_STRATEGIES.values(), ids=KV_STRATEGIES)
def test_every_sharing_goes_with_every_eviction(kv: dict[str, str]) -> None:
    assert Strategy(**kv).make_pool(Limits(16, 4, 64, 8), 64).num_free == 4


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown KV sharing 'none'; known: recompute, bidirectional, keep-resident"):
        kv_sharing_named("none")
