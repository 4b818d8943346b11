"""The bidirectional pool, case by case."""

import pytest

from shared.scheduling.kv.eviction.evictions import EVICTIONS
from shared.scheduling.kv.pool import BlockOwners
from shared.scheduling.request import Kind
from tests.shared.scheduling.kv.bidirectional_bench import Bench, started
from tests.shared.scheduling.kv.cache_listeners import start


def test_two_requests_share_a_block_from_both_ends() -> None:
    bench = Bench(num_blocks=1)
    started(bench, "off", Kind.OFFLINE, 2)
    started(bench, "on", Kind.ONLINE, 2, first=50)
    assert bench.pool.table("on") == bench.pool.table("off") == [0]
    assert bench.paused == set() and bench.pool.num_free == 0
    assert bench.pool.owners() == BlockOwners(shared=1) and bench.pool.num_held_online == 1
    bench.check_reads("off", 2, bench.device)
    bench.pool.check_integrity()


def test_only_overwritten_slots_are_checkpointed_and_the_latest_first() -> None:
    bench = Bench(num_blocks=1)
    started(bench, "off", Kind.OFFLINE, 3)
    started(bench, "on", Kind.ONLINE, 1, first=50)
    bench.tokens["on"] += [51, 52]
    assert bench.device.host == {}
    assert bench.run("on", 2) and bench.paused == {"off"}
    assert list(bench.device.host.values()) == [bench.content("off", 2)]
    assert bench.pool.owners() == BlockOwners(shared=1) and bench.pool.num_missing_slots("off") == 1
    assert bench.run("on", 3)
    assert list(bench.device.host.values()) == [bench.content("off", 2), bench.content("off", 1)]
    assert bench.pool.num_missing_slots("off") == 2
    bench.tokens["off"].append(9)
    assert not bench.run("off", 4), "it is not whole and cannot be"
    bench.free("on")
    assert bench.run("off", 4), "restored in place"
    assert bench.pool.num_missing_slots("off") == 0 and bench.pool.num_host_slots_free == 100


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
    assert start(bench.pool, "on", Kind.ONLINE, list(range(9))) == 0
    assert start(bench.pool, "late", Kind.OFFLINE, list(range(9))) == 8


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_online_contents_outlive_offline_churn_where_they_are_kept(eviction: str) -> None:
    bench = Bench(eviction=eviction)
    started(bench, "chat", Kind.ONLINE, 12)
    bench.free("chat")
    for number in range(20):
        started(bench, "churn", Kind.OFFLINE, 16, first=100 * number)
        bench.free("churn")
        bench.check()
    assert start(bench.pool, "again", Kind.ONLINE, list(range(13))) == (12 if eviction != "lru" else 0)


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
    checkpointed = [*(bench.content("a", position) for position in range(5)), bench.content("b", 4)]
    assert sorted(bench.device.host.values()) == sorted(checkpointed) and bench.pool.owners() == BlockOwners(online=3)
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
    assert "off" not in bench.tokens and bench.pool.num_missing_slots("off") == 0
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


def test_slots_that_were_not_written_are_not_moved() -> None:
    bench = Bench(num_blocks=3)
    started(bench, "full", Kind.ONLINE, 4, first=20)
    bench.add("off", Kind.OFFLINE, list(range(7)))
    assert bench.run("off", 1) and bench.grow("off", 6)
    bench.give_up("off")
    assert bench.run("off", 2)
    started(bench, "on", Kind.ONLINE, 2, first=50)
    assert bench.pool.table("on") == bench.pool.table("off")[1:]
    bench.free("full")
    assert bench.grow("off", 7) and bench.pool.table("on") != bench.pool.table("off")[1:]
    assert not bench.pool.take_operations()


def test_who_fills_its_block_up_to_its_peers_slots_stays_even_beside_a_step_that_works_on_them() -> None:
    bench = Bench(num_blocks=2)
    started(bench, "full", Kind.ONLINE, 4, first=20)
    started(bench, "off", Kind.OFFLINE, 1)
    started(bench, "on", Kind.ONLINE, 1, first=50)
    bench.free("full")
    bench.tokens["off"].append(9)
    bench.tokens["on"].append(51)
    assert bench.launch({"off": 2, "on": 2}) == ["off", "on"]
    assert bench.pool.table("on") == bench.pool.table("off")
    assert bench.pool.num_free == 1 and bench.paused == set()


def test_a_block_is_shared_beside_the_last_page_with_the_most_empty_slots() -> None:
    bench = Bench(num_blocks=3)
    for name, num_tokens in (("a", 2), ("b", 1), ("c", 3)):
        started(bench, name, Kind.OFFLINE, num_tokens, first=10 * num_tokens)
    started(bench, "on", Kind.ONLINE, 1, first=50)
    assert bench.pool.table("on") == bench.pool.table("b")
    started(bench, "more", Kind.ONLINE, 1, first=60)
    assert bench.pool.table("more") == bench.pool.table("a")
    bench.add("large", Kind.ONLINE, [70, 71])
    assert not bench.run("large", 2), "beside the third there is room for one"


def test_failed_operations_void_what_they_wrote() -> None:
    bench = Bench(num_blocks=2)
    started(bench, "off", Kind.OFFLINE, 7)
    bench.pool.pause("off")
    bench.add("on", Kind.ONLINE, [50])
    assert bench.pool.grow("on", 1)
    assert bench.pool.void(bench.pool.take_operations(), []) == []
    bench.add("more", Kind.ONLINE, [60, 61, 62, 63])
    assert bench.pool.grow("more", 4)
    assert bench.fail() == ["off"]
    assert start(bench.pool, "again", Kind.OFFLINE, list(range(7))) == 0
    bench.pool.check_integrity()


@pytest.mark.parametrize("has_ended", [False, True])
def test_what_a_failed_step_was_to_bring_back_is_not_found(has_ended: bool) -> None:
    """Nor is it there any more where its owner has ended meanwhile."""
    bench = Bench(num_blocks=1)
    started(bench, "off", Kind.OFFLINE, 4)
    bench.pause("off")
    started(bench, "on", Kind.ONLINE, 2, first=50)
    bench.free("on")
    assert bench.grow("off", 4)
    failed = bench.pool.take_operations()
    if has_ended:
        bench.free("off")
        assert bench.pool.owners() == BlockOwners(cached=1)
        assert bench.pool.void(failed, []) == []
    else:
        assert bench.pool.void(failed, []) == ["off"]
        bench.free("off")
    assert bench.pool.owners() == BlockOwners(empty=1)
    assert start(bench.pool, "again", Kind.OFFLINE, list(range(7))) == 0
    bench.pool.check_integrity()


def test_starting_twice_is_refused() -> None:
    bench = Bench()
    start(bench.pool, "a", Kind.ONLINE, [1])
    with pytest.raises(ValueError, match="a has blocks already"):
        start(bench.pool, "a", Kind.ONLINE, [1])
