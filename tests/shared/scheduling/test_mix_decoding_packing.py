"""OOCO Alg. 2 against a naive one, and what each pool of executors does of offline work."""

import dataclasses
import math
import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.latency.features import BatchFeatures
from shared.protocol.codec import decode, encode
from shared.scheduling.credit import Credit
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.view import no_queue
from shared.scheduling.packing.pace import Pace
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.placement.role import Role
from shared.scheduling.policy import Policy
from shared.scheduling.request import HELD, Kind, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from shared.scheduling.strategy import Strategy
from tests.shared.scheduling.factories import (
    MODEL,
    make_decode,
    make_request,
    make_table,
    queue_of,
    step_state,
    tokens,
)
from tests.shared.scheduling.naive_batch import NaiveBatch

MIX, TWO_PHASE = packing_named("mix-decoding"), packing_named("two-phase")
LIMITS = Limits(block_size=16, num_blocks=20_000, max_num_batched_tokens=512, max_num_seqs=256)
contexts = st.lists(st.integers(1, 3000), max_size=40)
budgets_ms = st.integers(4, 2400).map(lambda number: number / 8 + 0.00037)  # no batch takes exactly as long


def mix_policy(budget_ms: float, role: Role = Role.MIXED, num_samples: int = 3, **fields: bool | float) -> Policy:
    return Policy(budget_ms, packing="mix-decoding", role=role, mix_samples=num_samples, **fields)  # type: ignore[arg-type]


def mix_state(policy: Policy, *held: Request, free: int | None = None, pace: Pace | None = None) -> StepState:
    return step_state(make_table(*held), LIMITS, policy, free, pace)


def mixed(policy: Policy, *held: Request, offline: list[Request] | None = None, **others: int) -> Schedule:
    return MIX.schedule(mix_state(policy, *held, **others), queue_of(offline or []))  # type: ignore[arg-type]


def decodes_of(lens: list[int], kind: Kind = Kind.OFFLINE) -> list[Request]:
    return [make_decode(f"{kind.name.lower()}-{n}", kind, context) for n, context in enumerate(lens)]


def naive_mix(online: list[Request], offline: list[Request], limit_ms: float, k: int, seed: int) -> set[str]:
    """Alg. 2, with each L of a whole batch."""

    def latency_ms(batch: list[Request]) -> float:
        features = BatchFeatures()
        for request in batch:
            features.add_decode(request.num_computed_tokens + 1)
        return MODEL.predict_ms(features)

    batch = list(online)
    drawn = random.Random(seed).sample(offline, min(k, len(offline)))
    for request in drawn:
        if latency_ms([*batch, request]) <= limit_ms:
            batch.append(request)
    others = [request for request in offline if request not in drawn]
    if others and latency_ms(batch) < limit_ms:
        others.sort(key=lambda request: request.num_computed_tokens)
        prefixes = [others[:count] for count in range(len(others) + 1)]
        batch += [each for each in prefixes if latency_ms([*batch, *each]) <= limit_ms][-1]
    return {request.request_id for request in batch}


@given(
    online=contexts.filter(bool),
    offline=contexts,
    budget_ms=budgets_ms,
    k=st.integers(0, 12),
    seed=st.integers(0, 1000),
)
def test_it_selects_as_the_algorithm_does(
    online: list[int], offline: list[int], budget_ms: float, k: int, seed: int
) -> None:
    held = [*decodes_of(online, Kind.ONLINE), *decodes_of(offline)]
    state = mix_state(mix_policy(budget_ms, num_samples=k), *held, pace=Pace(seed=seed))
    schedule = MIX.schedule(state, no_queue)
    naive = naive_mix(held[: len(online)], held[len(online) :], budget_ms, k, seed)
    assert set(tokens(schedule)) == naive and not schedule.preempted
    assert MIX.reconcile(state, schedule.entries, []).entries == schedule.entries


def test_the_same_state_gives_the_same_schedule_and_the_next_step_another() -> None:
    held = [*decodes_of([100], Kind.ONLINE), *decodes_of([100 * n for n in range(1, 30)])]
    pace, chosen = Pace(), []
    for _ in range(40):
        told = decode(encode(pace), Pace)  # as a step message brings it
        schedule = MIX.schedule(mix_state(mix_policy(30.0), *held, pace=pace), no_queue)
        assert MIX.schedule(mix_state(mix_policy(30.0), *held, pace=told), no_queue) == schedule
        chosen.append(set(tokens(schedule)))
        pace = pace.after(schedule, 256)
    assert len(set(map(frozenset, chosen))) > 1
    longest = held[-1].request_id
    assert any(longest in each for each in chosen), "drawn at random now and then"
    assert all("offline-0" in each or "offline-1" in each for each in chosen), "and the shortest besides"


def test_shortest_first_alone_never_runs_the_longest() -> None:
    held = [*decodes_of([100], Kind.ONLINE), *decodes_of([100 * n for n in range(1, 30)])]
    policy = mix_policy(20.0, num_samples=0)
    pace = Pace()
    for _ in range(40):
        schedule = MIX.schedule(mix_state(policy, *held, pace=pace), no_queue)
        assert list(tokens(schedule))[1:] == [f"offline-{n}" for n in range(len(schedule.entries) - 1)]
        assert 1 < len(schedule.entries) < len(held)
        pace = pace.after(schedule, 256)


def test_what_has_the_time_and_lacks_a_block_takes_it_from_the_latest() -> None:
    held = decodes_of([160] * 6)  # each needs a block
    schedule = mixed(mix_policy(1000.0), *held, free=0)
    assert schedule.preempted == ["offline-5"] or "offline-5" in tokens(schedule)
    assert len(schedule.entries) + len(schedule.preempted) == 6 and len(schedule.preempted) == 1


@given(
    blocks=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    free=st.integers(0, 3),
    budget_ms=budgets_ms,
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    k=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_where_blocks_are_short_it_selects_as_a_slow_reader_does(
    blocks: list[int], free: int, budget_ms: float, sizes: tuple[int, int], k: int, seed: int
) -> None:
    """All decodes have filled their blocks."""
    decodes, online = decodes_of([16 * count for count in blocks]), make_decode("on")
    limits, policy = Limits(16, 20_000, *sizes), mix_policy(budget_ms, num_samples=k)
    state = step_state(make_table(online, *decodes), limits, policy, free, Pace(seed=seed))
    batch = NaiveBatch(state, budget_ms, free, limits.max_num_seqs, [(online, 1)])

    def decode(request: Request) -> None:
        if request not in batch.lost:
            batch.make_room(request, decodes, partial(batch.add, request))

    drawn = random.Random(seed).sample(decodes, min(k, len(decodes)))
    for request in drawn:
        decode(request)
    others = sorted((each for each in decodes if each not in drawn), key=lambda each: each.num_computed_tokens)
    for request in [each for each in others if each not in batch.lost]:
        if not batch.has_room:
            break
        decode(request)
    schedule = MIX.schedule(state, no_queue)
    assert schedule.entries == batch.entries
    assert schedule.preempted == [request.request_id for request in batch.lost]


def test_an_idle_executor_runs_one_whatever_the_budget() -> None:
    far_along = decodes_of([15_000] * 4)  # 25 ms each
    for num_samples in (0, 3):
        assert len(mixed(mix_policy(5.0, num_samples=num_samples), *far_along).entries) == 1


def test_who_has_no_time_takes_nobodys_blocks() -> None:
    held = [make_decode("on", context=100), *decodes_of([160] * 6)]
    schedule = mixed(mix_policy(11.2), *held, free=0)
    assert list(tokens(schedule)) == ["on"] and not schedule.preempted


def started(request_id: str) -> Request:
    return make_request(request_id, Kind.OFFLINE, prompt=100, computed=32)


@pytest.mark.parametrize(
    ("role", "online", "expected"),
    [
        (Role.MIXED, "decode", {"on", "decode", "started", "waiting", "new"}),
        (Role.MIXED, "prompt", {"on", "decode", "started", "waiting", "new"}),
        (Role.MIXED, "", {"decode", "started", "waiting", "new"}),
        (Role.STRICT, "decode", {"on", "decode", "started", "waiting", "new"}),
        (Role.STRICT, "prompt", {"on", "decode", "started", "waiting", "new"}),
        (Role.STRICT, "", {"decode", "started", "waiting", "new"}),
        (Role.RELAXED, "decode", {"on", "decode"}),
        (Role.RELAXED, "prompt", {"on"}),
        (Role.RELAXED, "", {"decode", "started", "waiting", "new"}),
    ],
)
def test_what_runs_in_which_pool(role: Role, online: str, expected: set[str]) -> None:
    held = [make_decode("decode", Kind.OFFLINE), started("started"), make_request("waiting", Kind.OFFLINE)]
    if online:
        held.append(make_decode("on") if online == "decode" else make_request("on", prompt=20))
    policy, new = mix_policy(1000.0, role), make_request("new", Kind.OFFLINE)
    state = mix_state(policy, *held)
    assert set(tokens(MIX.schedule(state, queue_of([new])))) == expected
    # A plan that was made before the online request came, and for another role.
    alone = mix_state(mix_policy(1000.0), *(each for each in held if each.kind is Kind.OFFLINE))
    planned = MIX.schedule(alone, queue_of([new]))
    state.table.add(new)
    fitted = MIX.reconcile(state, planned.entries, planned.preempted)
    assert set(tokens(fitted)) == expected
    assert fitted.num_dropped == len({"decode", "started", "waiting", "new"} - expected)


def test_who_was_evicted_on_a_strict_executor_goes_on_beside_online_requests() -> None:
    """In what the decodes leave of the budget."""
    held = [make_decode("on"), *decodes_of([100] * 4), make_request("lost", Kind.OFFLINE, prompt=100)]
    beside = mixed(mix_policy(25.0, Role.STRICT), *held)
    assert len(beside.entries) == 6 and beside.entries[-1].request_id == "lost"
    assert 0 < tokens(beside)["lost"] < 100 and beside.latency_ms <= 25.0
    assert "lost" not in tokens(mixed(mix_policy(15.0, Role.STRICT), *held)), "nothing is left"


def test_a_relaxed_executor_is_idle_while_its_online_requests_move() -> None:
    """They are no part of its steps, so that these may be long."""
    moving = make_decode("on")
    moving.num_in_flight_tokens = HELD
    policy = mix_policy(15.0, Role.RELAXED, idle_budget_ms=100.0)
    schedule = mixed(policy, moving, *decodes_of([100] * 30))
    assert len(schedule.entries) == 30 and schedule.latency_ms > 15.0
    moving.num_in_flight_tokens = 0
    assert mixed(policy, moving, *decodes_of([100] * 30)).latency_ms <= 15.0


@given(online=contexts, offline=contexts, prompts=st.lists(st.integers(1, 400), max_size=4), free=st.integers(0, 99))
def test_online_work_is_that_of_two_phase(online: list[int], offline: list[int], prompts: list[int], free: int) -> None:
    held = [*decodes_of(online, Kind.ONLINE), *decodes_of(offline)]
    held += [make_request(f"prompt-{n}", prompt=length) for n, length in enumerate(prompts)]
    state = mix_state(mix_policy(40.0), *held, free=free)
    others = dataclasses.replace(state, policy=Policy(40.0))
    ours, theirs = MIX.schedule(state, no_queue), TWO_PHASE.schedule(others, no_queue)
    assert online_part(ours) == online_part(theirs)


def online_part(schedule: Schedule) -> list[ScheduledRequest]:
    return [entry for entry in schedule.entries if entry.kind is Kind.ONLINE]


@given(
    online=contexts,
    offline=contexts,
    prompts=st.lists(st.integers(1, 200), max_size=4),
    saved_ms=st.floats(0, 500),
    num_steps=st.integers(0, 100),
)
def test_a_tolerance_and_an_idle_budget_are_those_of_two_phase(
    online: list[int], offline: list[int], prompts: list[int], saved_ms: float, num_steps: int
) -> None:
    held = [*decodes_of(online, Kind.ONLINE), *decodes_of(offline)]
    queue = [make_request(f"new-{n}", Kind.OFFLINE, prompt=length) for n, length in enumerate(prompts)]
    pace = Pace(credit=Credit(saved_ms, num_steps=num_steps), most_idle_ms=80.0)
    policy = mix_policy(0.0, idle_budget_ms=100.0, tolerance=0.05)
    state = mix_state(policy, *held, pace=pace)
    others = dataclasses.replace(state, policy=dataclasses.replace(policy, packing="two-phase"))
    ours, theirs = MIX.schedule(state, queue_of(queue)), TWO_PHASE.schedule(others, queue_of(queue))
    assert ours.share == theirs.share and online_part(ours) == online_part(theirs)
    least_ms = MODEL.predict_ms(BatchFeatures(0, 0, sum(online) + len(online), len(online)))
    most_ms = max(least_ms, pace.credit.budget_ms(ours.share)) if online else 80.0
    assert ours.latency_ms <= most_ms + 1e-6
    if theirs.latency_ms < most_ms and sum(tokens(theirs).values()) == len(held) + sum(prompts):
        assert tokens(ours) == tokens(theirs), "all of it fits"


@given(lens=contexts.filter(bool), budget_ms=budgets_ms)
def test_where_online_work_is_too_much_the_oldest_run(lens: list[int], budget_ms: float) -> None:
    held = decodes_of(lens, Kind.ONLINE)
    for role in (Role.MIXED, Role.STRICT):
        state = mix_state(mix_policy(budget_ms, role, sheds_online=True), *held)
        schedule = MIX.schedule(state, no_queue)
        count = len(schedule.entries)
        assert list(tokens(schedule)) == [request.request_id for request in held[:count]] and count > 0
        assert schedule.latency_ms <= budget_ms or count == 1
        if count < len(held):
            features = BatchFeatures()
            features.add_decodes([request.num_computed_tokens + 1 for request in held[: count + 1]])
            assert MODEL.predict_ms(features) > budget_ms
        assert not schedule.preempted and MIX.reconcile(state, schedule.entries, []).entries == schedule.entries
    for policy in (
        mix_policy(budget_ms),
        mix_policy(budget_ms, Role.RELAXED, sheds_online=True),
        mix_policy(0.0, sheds_online=True),
        mix_policy(math.inf, sheds_online=True),
    ):
        assert len(mixed(policy, *held).entries) == len(held)


@given(lens=st.lists(st.integers(1, 3000), min_size=1, max_size=6), offline=st.lists(st.integers(1, 300), max_size=4))
def test_beside_online_requests_that_stand_still_no_offline_one_runs(lens: list[int], offline: list[int]) -> None:
    """Nor does one that a plan brings which was made before somebody had to."""
    held = [*decodes_of(lens, Kind.ONLINE), *decodes_of(offline)]
    state = mix_state(mix_policy(20.0, Role.STRICT, sheds_online=True), *held)
    plan = [ScheduledRequest(request.request_id, request.kind, 1) for request in held]
    for schedule in (MIX.schedule(state, no_queue), MIX.reconcile(state, plan, [])):
        kinds = [entry.kind for entry in schedule.entries]
        assert kinds.count(Kind.ONLINE) == len(lens) or Kind.OFFLINE not in kinds


def test_the_strategy_makes_the_policy() -> None:
    policy = Strategy.of("ooco").policy(40.0)
    assert (policy.packing, policy.sheds_online, policy.mix_samples) == ("mix-decoding", False, 8)
    shedding = Strategy.of("ooco", budget_ms=40.0, online_overload="shed", mix_samples=2)
    policy = shedding.policy(40.0)
    assert policy.sheds_online and policy.mix_samples == 2 and policy.online_limit_ms == 40.0
    assert Strategy.of("ooco").offline_handover == "pulled" and Strategy().offline_handover == "pushed"
    with pytest.raises(ValueError, match=r"packing mix-decoding is .*: with kv_sharing bidirectional KV is paused"):
        Strategy.of("ooco", kv_sharing="bidirectional")
    with pytest.raises(ValueError, match="give that as --budget-ms"):
        Strategy.of("ooco", online_overload="shed")
    with pytest.raises(ValueError, match="two-phase leaves no online decode out"):
        Strategy.of("hygen", online_overload="shed", budget_ms=40.0)
