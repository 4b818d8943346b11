"""What a strict replica would have of others' offline requests."""

from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_spec

from shared.latency.bottleneck import saturated_batch_size
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import StepResult
from shared.replica.replica import Replica
from shared.replica.wanted import wanted_by
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest
from tests.shared.simulation.test_system import MODEL, NUM_BLOCKS, make_offline, make_online, make_setup

POLICY = Policy(30.0, packing="mix-decoding")


def make_replica() -> Replica:
    setup = make_setup("ooco")
    return Replica(setup.limits, setup.spec, None, setup.strategy)


def run_step(replica: Replica, policy: Policy = POLICY) -> list[list[str]]:
    schedule = replica.schedule(None, policy, MODEL)
    replica.begin(schedule, 0)
    return [[entry.request_id for entry in step] for step in replica.in_flight()]


def test_one_that_has_nothing_would_have_what_saturates_it() -> None:
    wanted = wanted_by(make_replica(), [], POLICY, MODEL, 0.1)
    assert wanted is not None and wanted.num_requests == saturated_batch_size(MODEL)
    assert wanted.num_requests * wanted.num_tokens <= wanted.most_tokens == NUM_BLOCKS * 16, "all that it has room for"


def test_who_runs_keeps_a_block_to_grow_into() -> None:
    replica = make_replica()
    replica.submit(make_online(1, 0.0))
    run_step(replica)
    free_blocks = replica.pool.num_free
    wanted = wanted_by(replica, [], POLICY, MODEL, 0.1)
    assert wanted is not None and wanted.most_tokens == (free_blocks - 1) * 16


def test_nothing_without_time_or_room_or_offline_work() -> None:
    replica = make_replica()
    assert wanted_by(replica, [], replace(POLICY, latency_budget_ms=5.2), MODEL, 0.1) is None
    assert wanted_by(replica, [], replace(POLICY, offline_enabled=False), MODEL, 0.1) is None
    _, packed = make_offline(1)
    replica.submit(packed.unpack())
    assert wanted_by(replica, [], POLICY, MODEL, 0.1) is None, "one that is here waits for its KV"


def test_under_a_tolerance_only_while_nobody_is_online() -> None:
    replica, tolerant = make_replica(), replace(POLICY, latency_budget_ms=0.0, tolerance=0.02)
    assert wanted_by(replica, [], tolerant, MODEL, 0.1) is not None
    replica.submit(make_online(1, 0.0))
    assert replica.table.waiting(Kind.ONLINE) and wanted_by(replica, [], tolerant, MODEL, 0.1) is None


def make_busy(num_blocks: int = NUM_BLOCKS, max_num_seqs: int = 16) -> tuple[Replica, list[ScheduledRequest]]:
    """With two that decode, one of either kind, in two blocks each; and their entries."""
    setup = make_setup("ooco")
    limits = replace(setup.limits, num_blocks=num_blocks, max_num_seqs=max_num_seqs)
    replica = Replica(limits, replace_spec(setup.spec, num_blocks=num_blocks), None, setup.strategy)
    for kind in Kind:
        sampling = SamplingParams(20, ignore_eos=True)
        replica.submit(GenerateRequest(kind.name, kind, [1000 * kind + index for index in range(17)], sampling, 0.0))
    batch = replica.begin(replica.schedule(None, Policy(), MODEL), 0)
    replica.finish(StepResult({each.request_id: 7 for each in batch.sequences}, 5.0))
    assert replica.pool.num_free == num_blocks - 4
    return replica, [ScheduledRequest(kind.name, kind, 1) for kind in Kind]


def test_nothing_while_an_online_request_stands_still() -> None:
    """Alg. 1 line 2: all requests are in B. Where none is left out on purpose, one that was not has just come."""
    replica, (online, offline) = make_busy()
    for sheds in (False, True):
        policy = replace(POLICY, sheds_online=sheds)
        assert wanted_by(replica, [online, offline], policy, MODEL, 0.1) is not None
        assert (wanted_by(replica, [offline], policy, MODEL, 0.1) is None) is sheds


@pytest.mark.parametrize(("num_blocks", "max_num_seqs"), [(NUM_BLOCKS, 5), (9, 16), (NUM_BLOCKS, 2), (6, 16)])
def test_of_either_kind_who_runs_keeps_a_place_and_a_block(num_blocks: int, max_num_seqs: int) -> None:
    """As many are wanted as saturate it, or, where it has no places for them, as it has."""
    replica, entries = make_busy(num_blocks, max_num_seqs)
    num_places, num_tokens = max_num_seqs - 2, (num_blocks - 6) * 16
    wanted = wanted_by(replica, entries, POLICY, MODEL, 0.1)
    if not num_places or not num_tokens:
        assert wanted is None
    elif num_places < saturated_batch_size(MODEL) - 2:
        assert wanted is not None and wanted.num_requests == num_places
    else:
        assert wanted is not None and wanted.most_tokens == num_tokens


def test_what_is_left_for_a_burst_is_not_for_others() -> None:
    now_ms = 0.0
    setup = make_setup("ooco", kv_reserve="burst")
    replica = Replica(setup.limits, setup.spec, None, setup.strategy, now_ms=lambda: now_ms)
    replica.submit(make_online(1, 0.0))
    while "on-1" in replica.table:
        batch = replica.begin(replica.schedule(None, POLICY, MODEL), 0)
        now_ms += 100.0
        replica.finish(StepResult({each.request_id: 7 for each in batch.sequences if each.needs_sample}, 100.0))
    wanted = wanted_by(replica, [], POLICY, MODEL, 0.1)
    assert replica.num_reserved_blocks > 5 and replica.pool.num_free == NUM_BLOCKS
    assert wanted is not None and wanted.most_tokens == (NUM_BLOCKS - replica.num_reserved_blocks) * 16
