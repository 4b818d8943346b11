"""Registrations of executors for tests, and the KV strategies that there are."""

from typing import Any

from msgspec.structs import replace

from shared.protocol.executors import EngineSpec, ExecutorInfo
from shared.scheduling.placement.role import Role
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
