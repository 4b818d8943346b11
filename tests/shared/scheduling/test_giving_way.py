"""Who loses its KV to online requests: rules against brute force, and the same one in packing and in allocation."""

import math
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.executor.engines.sim import SimEngine
from shared.latency.linear import LinearLatencyModel
from shared.protocol.executors import EngineSpec
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.replica.replica import Replica
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.view import no_queue
from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.giving_way import (
    GIVING_WAY,
    MAX_SET,
    fewest,
    give_back_offline_blocks,
    who_gives_way,
)
from shared.scheduling.packing.pace import Pace
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import Schedule, ScheduledRequest
from tests.shared.scheduling.factories import LIMITS, make_decode, make_request, make_table

NO_TIME = LinearLatencyModel(0, 0, 0, 0, 0, 0, 0)
MEMORY_BOUND = LinearLatencyModel(10.0, 0.5, 0.01, 0.0, 0.0, 0.5, 0.01)
COMPUTE_BOUND = LinearLatencyModel(1.0, 0.5, 0.0001, 0.0, 0.0, 0.5, 5.0)


def offline(contexts: list[int]) -> list[Request]:
    return [make_decode(f"off-{n}", Kind.OFFLINE, context) for n, context in enumerate(contexts)]


def chosen(rule: str, held: list[Request], num_needed: int, spared: Sequence[str] = ()) -> list[str]:
    """One after another, until they free enough."""
    table, lost = make_table(*held), list[str]()
    while num_needed > 0 and (victim := who_gives_way(rule, table, [*spared, *lost], num_needed)) is not None:
        lost.append(victim.request_id)
        num_needed -= victim.num_blocks
    return lost


@given(st.lists(st.integers(1, 400), max_size=8), st.integers(1, 80))
def test_fewest_is_the_smallest_set_with_the_least_to_compute_again(contexts: list[int], num_needed: int) -> None:
    held = offline(contexts)
    by_id = {request.request_id: request for request in held}
    sets = [each for count in range(len(held) + 1) for each in combinations(held, count)]
    enough = [each for each in sets if sum(request.num_blocks for request in each) >= num_needed]
    lost = chosen("fewest", held, num_needed)
    if not enough:
        assert sorted(lost) == sorted(by_id)
        return
    least = min((len(each), sum(request.num_blocks for request in each)) for each in enough)
    assert (len(lost), sum(by_id[key].num_blocks for key in lost)) == least


def test_a_set_of_many_begins_with_the_largest() -> None:
    held = offline([16 * n for n in range(1, 40)])
    num_needed = sum(range(39 - MAX_SET, 40))
    assert chosen("fewest", held, num_needed)[0] == "off-38"
    assert len(chosen("fewest", held, num_needed)) == MAX_SET + 1
    assert fewest([], 3) is None


def test_the_rules() -> None:
    held = offline([100, 300, 200, 300, 50])  # 7, 19, 13, 19 and 4 blocks
    assert chosen("latest", held, 20) == ["off-4", "off-3"]
    assert chosen("longest", held, 20) == ["off-3", "off-1"]
    assert chosen("longest", held, 5) == ["off-3"]
    assert chosen("fewest", held, 5) == ["off-0"]
    assert chosen("fewest", held, 20) == ["off-2", "off-0"]
    assert chosen("least-missed", held, 5) == ["off-0"]
    assert all(chosen(rule, [], 5) == [] for rule in GIVING_WAY)


def test_only_a_set_of_more_than_that_begins_with_the_largest() -> None:
    """Which is in no smallest set: those of ten blocks are just enough."""
    held = offline([160] * 12 + [176])
    assert "off-12" not in chosen("fewest", held, 10 * MAX_SET)
    assert chosen("fewest", held, 10 * (MAX_SET + 1))[0] == "off-12"


def test_who_frees_one_block_too_few_is_missed_more_than_who_frees_enough() -> None:
    held = [
        make_request(f"off-{n}", Kind.OFFLINE, 100, 0, computed, blocks)
        for n, (computed, blocks) in enumerate([(20, 5), (10, 4)])
    ]
    assert chosen("least-missed", held, 5) == ["off-0"]
    assert chosen("least-missed", held, 4) == ["off-1"]


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), min_size=1, max_size=8), st.integers(1, 10))
def test_least_missed_has_the_least_to_compute_again_of_those_that_free_enough(
    shapes: list[tuple[int, int]], num_needed: int
) -> None:
    """A prompt may have many blocks with little in them."""
    held = [
        make_request(f"off-{n}", Kind.OFFLINE, 100, 0, computed, blocks) for n, (computed, blocks) in enumerate(shapes)
    ]
    most = max(request.num_blocks for request in held)
    able = [request for request in held if request.num_blocks >= min(num_needed, most)]
    least = min(request.num_computed_tokens for request in able)
    expected = next(each for each in reversed(able) if each.num_computed_tokens == least)
    assert who_gives_way("least-missed", make_table(*held), (), num_needed) is expected


@pytest.mark.parametrize("rule", GIVING_WAY)
@given(
    held=st.lists(st.tuples(st.integers(1, 200), st.sampled_from(["", "", "", "in flight", "lost"])), max_size=8),
    num_free=st.integers(0, 40),
    num_taken=st.integers(0, 120),
)
def test_what_online_requests_took_is_given_back_by_the_rule(
    rule: str, held: list[tuple[int, str]], num_free: int, num_taken: int
) -> None:
    """``lost``: by the online phase, which has had those blocks."""
    requests = offline([context for context, _ in held])
    for request, (_, what) in zip(requests, held, strict=True):
        request.num_in_flight_tokens = int(what == "in flight")
    lost_before = [each.request_id for each, (_, what) in zip(requests, held, strict=True) if what == "lost"]
    num_offline = sum(each.num_blocks for each, (_, what) in zip(requests, held, strict=True) if not what)
    num_taken = min(num_taken, num_free + num_offline)
    builder = BatchBuilder(LIMITS, NO_TIME, math.inf, num_free + num_offline - num_taken)
    lost = give_back_offline_blocks(builder, make_table(*requests), num_offline, lost_before, rule)
    assert lost == chosen(rule, requests, num_taken - num_free, lost_before)
    num_lost = sum(each.num_blocks for each in requests if each.request_id in lost)
    assert builder.num_blocks_left == num_free + num_lost - num_taken


def test_the_documented_sets() -> None:
    held = offline([16 * blocks for blocks in (40, 25, 20, 10)])
    assert chosen("fewest", held, 32) == ["off-0"]
    assert chosen("fewest", held, 43) == ["off-1", "off-2"]


@pytest.mark.parametrize("rule", GIVING_WAY)
def test_nobody_in_a_step_or_paused_gives_way(rule: str) -> None:
    held = offline([100, 300, 200])
    held[1].num_in_flight_tokens = 1
    held[2].num_kept_blocks = 0
    assert chosen(rule, held, 1000) == ["off-0"]


@pytest.mark.parametrize(("model", "lost"), [(MEMORY_BOUND, ["off-1"]), (COMPUTE_BOUND, ["off-0"])])
def test_mix_decoding_goes_by_the_bottleneck(model: LinearLatencyModel, lost: list[str]) -> None:
    held = [*offline([600, 200, 100]), make_request("on", prompt=180)]  # 38, 13 and 7 blocks, and 12 are needed
    limits, policy = Limits(16, 1000, 512, 64), Policy(1000.0, packing="mix-decoding")
    state = StepState(make_table(*held), 0, 58, limits, policy, model, Pace())
    mixed = packing_named("mix-decoding")
    schedule = mixed.schedule(state, no_queue)
    assert schedule.preempted == lost and schedule.entries[0].request_id == "on"
    planned = [ScheduledRequest(request.request_id, Kind.OFFLINE, 1) for request in held[:3]]
    fitted = mixed.reconcile(state, planned, [])
    assert fitted.preempted == lost and fitted.gives_way == schedule.gives_way
    assert packing_named("two-phase").schedule(state, no_queue).preempted == ["off-2", "off-1"]


@pytest.mark.parametrize(("rule", "lost"), [("latest", "c"), ("longest", "b"), ("fewest", "a"), ("least-missed", "a")])
def test_allocation_goes_by_the_schedules_rule(rule: str, lost: str) -> None:
    """Where the counts were too hopeful: of 12 blocks 9 are held, and an online prompt needs 5."""
    spec = EngineSpec("m", "sim", "none", "float16", 512, 49152, 16, 12, (2,))
    replica, engine = Replica(Limits(16, 12, 256, 32), spec, None), SimEngine(spec, NO_TIME, 30.0)
    for request_id, prompt in {"a": 20, "b": 60, "c": 40}.items():
        tokens = list(range(100 * prompt, 101 * prompt))
        replica.submit(GenerateRequest(request_id, Kind.OFFLINE, tokens, SamplingParams(max_tokens=3), 0.0, "gateway"))
    batch = replica.begin(replica.schedule(None, Policy(), NO_TIME), 0)
    replica.finish(engine.execute(batch))
    replica.submit(GenerateRequest("on", Kind.ONLINE, list(range(70)), SamplingParams(max_tokens=3), 0.0, "gateway"))
    running = replica.allocate(Schedule([ScheduledRequest("on", Kind.ONLINE, 70)], [], 0.0, gives_way=rule))
    assert [sequence.request_id for sequence, _ in running] == ["on"]
    assert list(replica.table.waiting(Kind.OFFLINE)) == [lost]
