"""What online requests may take, counted block by block."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from services.executor.engines.sim import SimEngine
from shared.latency.linear import LinearLatencyModel
from shared.replica.replica import Replica
from shared.replica.sequence import LiveSequence
from shared.scheduling.kv.request_cache import Found
from shared.scheduling.kv.sharing import KV_SHARINGS
from shared.scheduling.limits import Limits
from shared.scheduling.packing.giving_way import FEWEST
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from shared.scheduling.strategy import Strategy
from tests.shared.replica.test_replica import MODEL, make_request, make_spec

NUM_BLOCKS = 40


def blocks_to_take(replica: Replica) -> int:
    """That idle offline requests hold, and nobody else: what a paused one once had may be another's by now."""
    held = [request for request in replica.table if request.is_running and not request.is_paused]
    idle = [each for each in held if each.kind is Kind.OFFLINE and not each.is_in_flight]
    in_flight = [each for each in held if each.kind is Kind.OFFLINE and each.is_in_flight]
    online = [each for each in held if each.kind is Kind.ONLINE]

    def blocks(requests: list[Request]) -> list[int]:
        return [block for each in requests for block in replica.pool.table(each.request_id)]

    # a block that one in flight shares with an online request is not counted as anybody's alone, and taken off again
    num_shared = len(set(blocks(in_flight)) & set(blocks(online)))
    return max(0, len(set(blocks(idle)) - set(blocks(in_flight)) - set(blocks(online))) - num_shared)


@pytest.mark.parametrize("sharing", KV_SHARINGS)
@pytest.mark.parametrize("seed", range(8))
def test_online_requests_may_take_what_only_idle_offline_ones_hold(sharing: str, seed: int) -> None:
    """None of what a step in flight reads: two steps are in flight at a time, and no two prompts begin alike."""
    rng, spec = random.Random(seed), replace(make_spec(NUM_BLOCKS), num_host_slots=256)
    strategy = Strategy(kv_sharing=sharing)
    replica = Replica(Limits(16, NUM_BLOCKS, 64, 8), spec, None, strategy)
    engine = SimEngine(spec, LinearLatencyModel(0, 0, 0, 0, 0, 0, 0), 30.0)
    for number in range(30):
        kind = Kind.OFFLINE if rng.random() < 0.7 else Kind.ONLINE
        prompt, max_tokens = rng.randint(1, 150), rng.randint(1, 30)
        replica.submit(make_request(f"r{number}", prompt, max_tokens, kind, first=1000 * number))
    batches, seen = [], set()
    while replica.has_work:
        state = replica.step_state(Policy(rng.choice([8.0, 1e9])), MODEL)
        expected = blocks_to_take(replica) if KV_SHARINGS[sharing].gives_way else 0
        assert (state.num_free_blocks, state.num_offline_blocks) == (replica.pool.num_free, expected)
        paused = [request for request in replica.table if request.is_paused]
        assert not any(each.num_missing_slots for each in replica.table if not each.is_paused)
        assert all(each.num_kept_blocks == replica.pool.num_kept_blocks(each.request_id) for each in paused)
        seen.add((len(batches), expected > 0))
        if len(batches) < 2 and (batch := replica.begin(replica.schedule(None, state.policy, MODEL), 0)).sequences:
            batches.append(batch)
        else:
            replica.finish(engine.execute(batches.pop(0)))
        replica.take_ended()
    assert replica.pool.num_free == NUM_BLOCKS
    if KV_SHARINGS[sharing].gives_way:
        assert (1, True) in seen and (2, False) in seen


def allocate(replica: Replica, entries: dict[str, int], preempted: list[str] | None = None) -> dict[str, int]:
    """Who runs, with how many tokens."""
    scheduled = [ScheduledRequest(key, replica.table.get(key).kind, count) for key, count in entries.items()]
    running = replica.allocate(Schedule(scheduled, preempted or [], 0.0))
    replica.pool.check_integrity()
    replica.table.check_integrity()
    return {sequence.request_id: num_tokens for sequence, num_tokens in running}


def make_replica(
    num_blocks: int, *requests: tuple[str, int, Kind], sharing: str = "recompute"
) -> tuple[Replica, SimEngine]:
    """With requests (id, tokens of the prompt, kind) that wait; no two begin alike."""
    spec = make_spec(num_blocks)
    replica = Replica(Limits(16, num_blocks, 512, 32), spec, None, Strategy(kv_sharing=sharing))
    for number, (request_id, prompt, kind) in enumerate(requests):
        replica.submit(make_request(request_id, prompt, 8, kind, first=1000 * number, ignore_eos=True))
    return replica, SimEngine(spec, LinearLatencyModel(0, 0, 0, 0, 0, 0, 0), 30.0)


def run(replica: Replica, engine: SimEngine, entries: dict[str, int]) -> None:
    scheduled = [ScheduledRequest(key, replica.table.get(key).kind, count) for key, count in entries.items()]
    replica.finish(engine.execute(replica.begin(Schedule(scheduled, [], 0.0), 0)))


def test_who_has_given_way_in_a_step_does_not_enter_again_in_it() -> None:
    """Though a block would be left for a part of it; those behind it run."""
    replica, engine = make_replica(6, ("first", 20, Kind.OFFLINE), ("last", 48, Kind.OFFLINE), ("on", 48, Kind.ONLINE))
    run(replica, engine, {"first": 20, "last": 48})
    assert allocate(replica, {"on": 48, "last": 1, "first": 1}) == {"on": 48, "first": 1}
    assert not replica.table.get("last").is_running and replica.pool.num_free == 1
    assert replica.totals.preemptions == 1


def test_only_who_runs_outside_a_step_loses_its_kv_and_once() -> None:
    requests = [(name, 20, Kind.OFFLINE) for name in ("lost", "busy", "waiting", "other")]
    replica, engine = make_replica(20, *requests)
    run(replica, engine, {"lost": 20, "busy": 20, "other": 20})
    assert allocate(replica, {"busy": 1}) == {"busy": 1}
    running = allocate(replica, {"waiting": 20, "other": 1}, ["lost", "gone", "busy", "waiting", "lost"])
    assert running == {"waiting": 20, "other": 1}
    assert [each.request_id for each in replica.table if each.is_running] == ["busy", "other", "waiting"]
    assert replica.totals.preemptions == 1


@pytest.mark.parametrize("num_computed", [16, 20, 36, 39])
def test_an_entry_has_no_more_tokens_than_are_left_of_its_prompt(num_computed: int) -> None:
    """Nor blocks for them, whether it enters or goes on."""
    replica, engine = make_replica(20, ("off", 40, Kind.OFFLINE))
    run(replica, engine, {"off": num_computed})
    for num_tokens in (100, 41 - num_computed):
        assert allocate(replica, {"off": num_tokens}) == {"off": 40 - num_computed}
        assert len(replica.pool.table("off")) == 3
    replica, _ = make_replica(20, ("off", 40, Kind.OFFLINE))
    assert allocate(replica, {"off": 100}) == {"off": 40} and len(replica.pool.table("off")) == 3


def test_what_enters_is_counted_as_it_was_planned_and_as_it_came() -> None:
    replica, engine = make_replica(20, ("off", 16, Kind.OFFLINE), ("other", 50, Kind.OFFLINE))
    run(replica, engine, {"off": 16})
    run(replica, engine, {"off": 1, "other": 80})
    run(replica, engine, {"off": 1, "other": 1})
    assert (replica.totals.entrant_tokens_planned, replica.totals.entrant_tokens_computed) == (96, 66)
    replica.allocate(Schedule([], [], 0.0, num_dropped=3))
    assert replica.totals.offline_dropped == 3


@pytest.mark.parametrize("num_free", range(4))
def test_an_online_prompt_takes_no_more_from_offline_ones_than_it_lacks(num_free: int) -> None:
    """Each has two blocks; the last gives way first, then the one before."""
    names = [f"off-{number}" for number in range(4)]
    replica, engine = make_replica(8 + num_free, *((name, 20, Kind.OFFLINE) for name in names), ("on", 64, Kind.ONLINE))
    run(replica, engine, dict.fromkeys(names, 20))
    assert allocate(replica, {"on": 64, **dict.fromkeys(names, 1)}) == {
        "on": 64,
        **dict.fromkeys(names[: 4 - -(-(4 - num_free) // 2)], 1),
    }


def test_what_waits_for_blocks_is_as_it_was() -> None:
    """An offline prompt that does not fit takes nothing, and is counted as dropped."""
    requests = [("first", 40, Kind.OFFLINE), ("second", 40, Kind.OFFLINE), ("third", 9, Kind.OFFLINE)]
    replica, engine = make_replica(4, *requests)
    run(replica, engine, {"first": 40})
    assert allocate(replica, {"first": 1, "second": 40, "third": 9}) == {"first": 1, "third": 9}
    second = replica.table.get("second")
    assert (second.num_blocks, second.num_computed_tokens, second.is_in_flight) == (0, 0, False)
    assert replica.totals.offline_dropped == 1 and replica.pool.num_free == 0


@given(st.lists(st.integers(1, 40), max_size=8))
def test_full_blocks_can_be_found_from_the_step_on_that_fills_them(chunks: list[int]) -> None:
    """Whether by a chunk of the prompt or by what is generated; what is counted of the prompt is the prompt."""
    replica, engine = make_replica(20, ("on", 155, Kind.ONLINE))
    request = replica.table.get("on")
    assert request is not None
    for num_tokens in [*chunks, *[50] * 12]:
        if not replica.has_work:
            break
        run(replica, engine, {"on": num_tokens})
        if replica.has_work:
            found = replica.step_state(Policy(), MODEL).cache.found(request)
            assert found.num_tokens == found.num_held_blocks * 16 == request.num_computed_tokens // 16 * 16
        assert replica.totals.prompt_tokens == min(request.num_computed_tokens, 155)
    assert replica.totals.prompt_tokens == 155 and replica.pool.num_free == 20


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("num_needed", [1, 2, 3, 4, 6, 7, 8, 9, 10])
def test_room_for_what_comes_from_another_replica(kind: Kind, num_needed: int) -> None:
    """6 blocks are free, and two offline requests have 2 each: an offline one leaves a block for each of three that
    run, an online one takes all that it lacks. What is coming is nobody's to take; dropped, it is free."""
    held = [("on", 20, Kind.ONLINE), ("first", 20, Kind.OFFLINE), ("last", 20, Kind.OFFLINE)]
    replica, engine = make_replica(12, *held)
    run(replica, engine, {key: 20 for key, _, _ in held})
    kv, coming = replica._kv, make_request("coming", 16 * num_needed, 8, kind, first=7000)
    sequence = LiveSequence.admit(coming, replica.spec, None)
    num_cached = kv.reserve(sequence, 16 * num_needed - 3)
    if num_needed > (3 if kind is Kind.OFFLINE else 10):
        assert num_cached is None and kv.num_blocks() == (6, 4) and replica.totals.preemptions == 0
        return
    num_lost = 0 if num_needed <= 6 else -(-(num_needed - 6) // 2)
    assert num_cached == 0 and replica.totals.preemptions == num_lost
    assert kv.num_blocks() == (6 - num_needed + 2 * num_lost, 4 - 2 * num_lost)
    kv.drop(sequence)
    assert kv.num_blocks() == (6 + 2 * num_lost, 4 - 2 * num_lost)
    replica.pool.check_integrity()


def test_online_requests_that_lose_their_kv_are_no_evictions_of_offline_ones() -> None:
    """Which prompts may begin goes by these."""
    held = [("on", 40, Kind.ONLINE), ("last", 40, Kind.ONLINE), ("off", 40, Kind.OFFLINE), ("stays", 40, Kind.OFFLINE)]
    replica, engine = make_replica(12, *held)
    run(replica, engine, {key: 40 for key, _, _ in held})
    entries = [ScheduledRequest("on", Kind.ONLINE, 1), ScheduledRequest("stays", Kind.OFFLINE, 1)]
    replica.allocate(Schedule(entries, ["last", "off"], 0.0))
    assert replica.totals.preemptions == 2 and replica.pace.evictions.lost == 1


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("num_needed", [3, 5, 6])
@pytest.mark.parametrize("is_first", [False, True])
def test_what_comes_leaves_the_reserve_as_what_enters_does(kind: Kind, num_needed: int, is_first: bool) -> None:
    """Of 8 free blocks one is for who runs and two are reserved. An online request takes them, and so does an offline
    one where nobody else is."""
    held = [] if is_first else [("first", 20, Kind.OFFLINE)]
    replica, engine = make_replica(8 if is_first else 10, *held)
    if held:
        run(replica, engine, {"first": 20})
    sequence = LiveSequence.admit(make_request("coming", 16 * num_needed, 8, kind, first=7000), replica.spec, None)
    has_room = kind is Kind.ONLINE or is_first or num_needed <= 5
    assert replica._kv.reserve(sequence, 16 * num_needed, 2) == (0 if has_room else None)


def test_what_has_come_runs_from_there() -> None:
    """The counts of blocks are as if it had begun here."""
    replica, engine = make_replica(12, ("first", 20, Kind.OFFLINE))
    run(replica, engine, {"first": 20})
    sequence = LiveSequence.admit(make_request("coming", 40, 8, Kind.OFFLINE, first=7000), replica.spec, None)
    assert replica._kv.reserve(sequence, 39) == 0
    assert replica._kv.num_blocks() == (7, 2), "it may not be taken yet"
    replica.table.add(sequence.request)
    replica._kv.take(sequence, 39)
    assert (sequence.request.num_computed_tokens, sequence.request.num_blocks) == (39, 3)
    assert replica._kv.num_blocks() == (7, 5)
    replica.submit(make_request("alike", 40, 8, Kind.OFFLINE, first=7000))
    alike = replica.table.get("alike")
    assert alike is not None
    assert replica.step_state(Policy(), MODEL).cache.found(alike) == Found(32, 2)
    replica.table.check_integrity()


@pytest.mark.parametrize("comes", [False, True])
@pytest.mark.parametrize(("num_tokens", "stays"), [(48, "large"), (64, "small")])
def test_who_gives_way_is_chosen_by_the_rule_of_the_newest_schedule(num_tokens: int, stays: str, comes: bool) -> None:
    """By what is lacking, for a chunk and for what comes: of 3 and of 4 blocks, those that are as many."""
    held = [("on", 80, Kind.ONLINE), ("large", 60, Kind.OFFLINE), ("small", 40, Kind.OFFLINE)]
    replica, engine = make_replica(8, *held)
    run(replica, engine, {"on": 16, "large": 60, "small": 40})
    if comes:
        replica.allocate(Schedule([], [], 0.0, gives_way=FEWEST))
        sequence = LiveSequence.admit(make_request("coming", num_tokens, 8, first=7000), replica.spec, None)
        assert replica._kv.reserve(sequence, num_tokens) == 0
    else:
        replica.allocate(Schedule([ScheduledRequest("on", Kind.ONLINE, num_tokens)], [], 0.0, gives_way=FEWEST))
    assert [each.request_id for each in replica.table if each.is_running] == ["on", stays]
    assert replica.totals.preemptions == 1


@pytest.mark.parametrize(("sharing", "is_paused"), [("recompute", False), ("bidirectional", True)])
def test_an_offline_request_that_cannot_go_on_keeps_its_kv_for_later(sharing: str, is_paused: bool) -> None:
    """Its next token lacks a block. Where KV is paused, its blocks are for others in the meantime."""
    held = [("first", 32, Kind.OFFLINE), ("second", 16, Kind.OFFLINE)]
    replica, engine = make_replica(3, *held, sharing=sharing)
    run(replica, engine, {"first": 32, "second": 16})
    assert allocate(replica, {"first": 1}) == {}
    first = replica.table.get("first")
    assert (first.num_blocks, first.num_computed_tokens, first.is_paused) == (2, 32, is_paused)
    assert (replica.totals.preemptions, replica.totals.pauses) == (0, is_paused)
