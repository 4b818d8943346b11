"""What is fixed about a simulated executor."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.latency.model import LatencyModel
from shared.latency.swap import SwapModel
from shared.protocol.messages import ExecutorInfo
from shared.replica.engine import EngineSpec
from shared.scheduling.batch import Limits, Policy
from shared.scheduling.kv.policy import LRU, KVPolicy
from shared.scheduling.packing.token_slo import TokenSlo

EPOCH = "simulated"  # of every executor: none comes back


@dataclass(frozen=True, slots=True)
class ExecutorSetup:
    """``planner``: what schedules are made with; ``latency``: how long steps take, times a factor that is lognormal
    with ``noise`` as its sigma, drawn anew for each step from ``seed``; ``swap``: how long its copies of KV slots take
    beside that."""

    limits: Limits
    spec: EngineSpec
    policy: Policy
    planner: LatencyModel
    latency: LatencyModel
    noise: float = 0.0
    seed: int = 0
    kv_policy: KVPolicy = LRU
    swap: SwapModel = field(default_factory=SwapModel)
    slo: TokenSlo = field(default_factory=TokenSlo)
    online_order: str = "fcfs"

    def tuning(self) -> tuple[Policy, LatencyModel]:
        """As the live system's budgets and models: those that hold now."""
        return self.policy, self.planner

    def info(self, executor_id: str) -> ExecutorInfo:
        """The registration, which schedulers follow."""
        spec, limits = self.spec, self.limits
        return ExecutorInfo(
            executor_id,
            EPOCH,
            0,
            spec.model,
            spec.engine,
            spec.device,
            spec.device,
            spec.max_model_len,
            limits.block_size,
            limits.num_blocks,
            limits.max_num_seqs,
            limits.max_num_batched_tokens,
            list(spec.eos_token_ids),
            spec.pipeline_depth,
            self.online_order,
            kv_policy=self.kv_policy.name,
            num_host_slots=spec.num_host_slots,
            swap_ms_per_slot=limits.swap_ms_per_slot,
            token_slo=self.slo,
        )
