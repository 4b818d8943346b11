"""What a strict replica would have of others' offline requests."""

from dataclasses import replace

from shared.latency.bottleneck import saturated_batch_size
from shared.replica.replica import Replica
from shared.replica.wanted import wanted_by
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
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
