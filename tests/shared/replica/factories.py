"""Registrations of executors for tests, the KV strategies that there are, and steps of a pipeline."""

from collections import deque
from typing import Any

from msgspec.structs import replace

from shared.errors import EngineError
from shared.latency.model import LatencyModel
from shared.protocol.executors import EngineSpec, ExecutorInfo
from shared.replica.engine import Engine, StepBatch
from shared.replica.replica import Replica
from shared.scheduling.placement.role import Role
from shared.scheduling.policy import Policy
from shared.scheduling.strategy import Strategy

SPEC = EngineSpec("m", "sim", "none", "float16", 512, 49152, 16, 48, (2,))
KV_STRATEGIES: dict[str, dict[str, str]] = {
    "lru": {},
    "priority": {"kv_eviction": "online-first"},
    "task-aware": {"kv_eviction": "task-aware"},
    "bidirectional": {"kv_sharing": "bidirectional"},
    "bidirectional-priority": {"kv_sharing": "bidirectional", "kv_eviction": "online-first"},
    "keep-resident": {"kv_sharing": "keep-resident"},
}


def make_info(
    strategy: Strategy | None = None,
    max_num_seqs: int = 32,
    max_num_batched_tokens: int = 64,
    executor_id: str = "executor-0",
    epoch: str = "epoch-1",
    role: Role = Role.MIXED,
    **spec: Any,
) -> ExecutorInfo:
    """``spec``: what is to differ from SPEC."""
    return ExecutorInfo(
        executor_id,
        epoch,
        1,
        "key",
        replace(SPEC, **spec),
        max_num_seqs,
        max_num_batched_tokens,
        strategy or Strategy(),
        role,
        "sim",
    )


def begin_or_end(replica: Replica, engine: Engine, launched: deque[StepBatch], model: LatencyModel) -> int:
    """Of two steps in flight, ``launched``: begin one, and end the oldest where there is no room for another, or
    nothing to begin. How many entered on what a step in flight had yet to write."""
    batch, num_readers = replica.begin(replica.schedule(None, Policy(), model), 0), 0
    if batch.sequences:
        launched.append(batch)
        num_readers = len(replica._in_flight[-1].unwritten.readers)
    if launched and (len(launched) == 2 or not batch.sequences):
        try:
            replica.finish(engine.execute(launched.popleft()))
        except EngineError as error:
            replica.fail(str(error))
    replica.pool.check_integrity()
    return num_readers
