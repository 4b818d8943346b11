"""Eviction policies, each against a list of all blocks that is sorted anew each time."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.kv.blocks import BlockPool
from shared.scheduling.kv.eviction.eviction import Eviction
from shared.scheduling.kv.eviction.evictions import EVICTIONS, make_eviction
from shared.scheduling.kv.eviction.lru import Lru
from shared.scheduling.kv.eviction.task_aware import MIN_PLACES, TaskAware
from shared.scheduling.request import Kind
from tests.shared.scheduling.kv.cache_listeners import commit, start

NUM_BLOCKS = 6


@dataclass(frozen=True, slots=True)
class Cached:
    """A block as it was let go of, the ``turn``-th."""

    block_id: int
    kind: Kind
    turn: int
    num_readers: int = 0


ORDERS: dict[str, Callable[[Cached], Any]] = {
    "lru": lambda cached: cached.turn,
    "online-first": lambda cached: (cached.kind is Kind.ONLINE, cached.turn),
    "task-aware": lambda cached: (cached.num_readers or 0.5 * (cached.kind is Kind.ONLINE), cached.turn),
}


@pytest.mark.parametrize("name", EVICTIONS)
@given(
    actions=st.lists(
        st.tuples(
            st.integers(0, NUM_BLOCKS - 1),
            st.sampled_from(Kind),
            st.sampled_from(["evict", "move", "move", "count", "count of another"]),
            st.integers(0, 3),
        ),
        max_size=60,
    )
)
def test_the_order_is_that_of_a_list(name: str, actions: list[tuple[int, Kind, str, int]]) -> None:
    """Readers are counted of contents in a block that is here, that is held, and that is nowhere yet."""
    eviction = make_eviction(name)
    cached: dict[int, Cached] = {}
    readers: dict[bytes, int] = {}
    for turn, (block_id, kind, action, num_readers) in enumerate(actions):
        expected = sorted(cached.values(), key=ORDERS[name])
        key = b"%d" % block_id
        if action.startswith("count"):
            key = key if action == "count" else b"another"
            readers[key] = num_readers
            eviction.count_readers(key, num_readers)
            if action == "count" and block_id in cached:
                cached[block_id] = replace(cached[block_id], num_readers=num_readers)
        elif action == "evict" and expected:
            assert eviction.evict() == expected[0].block_id
            del cached[expected[0].block_id]
        elif block_id in cached:
            eviction.hold(block_id)
            del cached[block_id]
        else:
            eviction.let_go(block_id, key, kind, 0)
            cached[block_id] = Cached(block_id, kind, turn, readers.get(key, 0))
        order = [each.block_id for each in sorted(cached.values(), key=ORDERS[name])]
        assert list(eviction) == order and len(eviction) == len(order)
        assert all((block_id in eviction) == (block_id in cached) for block_id in range(NUM_BLOCKS))
        num_wanted = sum(each.num_readers > 0 for each in cached.values())
        assert eviction.num_wanted == (num_wanted if eviction.needs_readers else 0)


def test_places_that_do_not_hold_any_more_are_cleared() -> None:
    eviction = TaskAware()
    for block_id in range(4):
        eviction.let_go(block_id, b"%d" % block_id, Kind.OFFLINE, 0)
    for count in range(1, 10_001):
        eviction.count_readers(b"%d" % (count % 3), count)
    assert len(eviction._heap) <= MIN_PLACES
    assert [eviction.evict() for _ in range(4)] == [3, 2, 0, 1]
    assert len(eviction) == eviction.num_wanted == 0


def test_the_order_holds_while_readers_change_thousands_of_times() -> None:
    rng, eviction, num_readers = random.Random(2), TaskAware(), dict.fromkeys(range(100), 0)
    for block_id in num_readers:
        eviction.let_go(block_id, b"%d" % block_id, Kind.OFFLINE, 0)
    for _ in range(20):
        for _ in range(200):
            block_id = rng.choice(list(num_readers))
            num_readers[block_id] = rng.randrange(9)
            eviction.count_readers(b"%d" % block_id, num_readers[block_id])
        order = sorted(num_readers, key=lambda block_id: (num_readers[block_id], block_id))
        for expected in order[:4]:
            assert eviction.evict() == expected
            del num_readers[expected]
    assert list(eviction) == order[4:]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown KV eviction 'mru'; known: lru, online-first, task-aware"):
        make_eviction("mru")


class Recorder(Lru):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int, Kind | None, int]] = []

    def let_go(self, block_id: int, key: bytes, kind: Kind, num_hits: int) -> None:
        self.told.append(("let go", block_id, kind, num_hits))
        super().let_go(block_id, key, kind, num_hits)

    def hold(self, block_id: int) -> None:
        self.told.append(("hold", block_id, None, 0))
        super().hold(block_id)


def test_it_is_told_who_held_a_block_how_often_it_was_found_and_when_it_is_held_again() -> None:
    eviction: Eviction = (recorder := Recorder())
    pool = BlockPool(2, 4, eviction)
    for turn, kind in enumerate((Kind.OFFLINE, Kind.ONLINE, Kind.OFFLINE)):
        assert start(pool, "a", kind, [1] * 5) == (4 if turn else 0)
        pool.grow("a", 5)
        commit(pool, "a", [1] * 5, 5)
        pool.free("a")
    hold = ("hold", 0, None, 0)
    let_go = [("let go", 0, kind, hits) for hits, kind in enumerate((Kind.OFFLINE, Kind.ONLINE, Kind.ONLINE))]
    assert recorder.told == [let_go[0], hold, let_go[1], hold, let_go[2]]
    assert start(pool, "b", Kind.OFFLINE, [2]) == 0 and pool.grow("b", 8)
    assert start(pool, "a", Kind.OFFLINE, [1] * 5) == 0
    pool.free("b")
    pool.check_integrity()
