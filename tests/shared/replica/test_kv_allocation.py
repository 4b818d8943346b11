"""What online requests may take, counted block by block."""

import random

import pytest

from services.executor.engines.sim import SimEngine
from shared.latency.linear import LinearLatencyModel
from shared.replica.replica import Replica
from shared.scheduling.kv.sharing import KV_SHARINGS
from shared.scheduling.limits import Limits
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
from tests.shared.replica.test_replica import MODEL, make_request, make_spec

NUM_BLOCKS = 40


def blocks_to_take(replica: Replica) -> int:
    """That idle offline requests hold, and nobody else."""
    held = [request for request in replica.table if request.is_running]
    idle = [each for each in held if each.kind is Kind.OFFLINE and not (each.is_in_flight or each.is_paused)]
    others = [each for each in held if each not in idle]
    taken, kept = (
        {block for each in requests for block in replica.pool.table(each.request_id)} for requests in (idle, others)
    )
    return len(taken - kept)


@pytest.mark.parametrize("sharing", KV_SHARINGS)
@pytest.mark.parametrize("seed", range(4))
def test_online_requests_may_take_what_only_idle_offline_ones_hold(sharing: str, seed: int) -> None:
    """None of what a step in flight reads: two steps are in flight at a time, and no two prompts begin alike."""
    rng, spec = random.Random(seed), make_spec(NUM_BLOCKS)
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
