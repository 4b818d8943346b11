"""What is fixed about a simulated executor."""

from dataclasses import dataclass

from shared.latency.model import LatencyModel
from shared.protocol.executors import EngineSpec, ExecutorInfo
from shared.scheduling.limits import Limits
from shared.scheduling.policy import Policy
from shared.scheduling.strategy import Strategy

EPOCH = "simulated"  # of every executor: none comes back


@dataclass(frozen=True, slots=True)
class ExecutorSetup:
    """``planner``: what schedules are made with; ``latency``: how long steps take, times a factor that is lognormal
    with ``noise`` as its sigma, drawn anew for each step from ``seed``."""

    limits: Limits
    spec: EngineSpec
    strategy: Strategy
    planner: LatencyModel
    latency: LatencyModel
    noise: float = 0.0
    seed: int = 0

    def policy(self) -> Policy:
        """With the budgets that the strategy has; a fixed one of 0 serves no offline work."""
        strategy, tolerance, budget_ms = self.strategy, None, self.strategy.budget_ms or None
        if strategy.latency_budget == "profiled":
            tolerance, budget_ms = strategy.tolerance, 0.0
        return strategy.policy(budget_ms, True, strategy.idle_budget_ms, tolerance, self.spec.is_interruptible)

    def info(self, executor_id: str) -> ExecutorInfo:
        """The registration, which schedulers follow."""
        limits = self.limits
        return ExecutorInfo(
            executor_id,
            EPOCH,
            0,
            self.spec.device,
            self.spec,
            limits.max_num_seqs,
            limits.max_num_batched_tokens,
            self.strategy,
        )
