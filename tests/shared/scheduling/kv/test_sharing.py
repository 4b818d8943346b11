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
    pool.unlock("a", 8)
    commit(pool, "a", range(8), 8)
    pool.free("a")
    assert start(pool, "b", kind, range(9)) == 8
    pool.check_integrity()


@pytest.mark.parametrize("kv", KV_STRATEGIES.values(), ids=KV_STRATEGIES)
def test_every_sharing_goes_with_every_eviction(kv: dict[str, str]) -> None:
    assert Strategy(**kv).make_pool(Limits(16, 4, 64, 8), 64).num_free == 4


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown KV sharing 'none'; known: recompute, bidirectional, keep-resident"):
        kv_sharing_named("none")
