"""What is fixed about a simulated executor."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shared.latency.model import LatencyModel
from shared.protocol.executors import EngineSpec, ExecutorInfo
from shared.scheduling.limits import Limits
from shared.scheduling.placement.role import Role, acting_role
from shared.scheduling.policy import Policy
from shared.scheduling.strategy import Strategy
from shared.simulation.link import NO_TIME, Link

EPOCH = "simulated"  # of every executor: none comes back


@dataclass(frozen=True, slots=True)
class ExecutorSetup:
    """``planner``: what schedules are made with; ``latency``: how long steps take, times a factor that is lognormal
    with ``noise`` as its sigma, drawn anew for each step from ``seed``. ``role``: what it was told to
    be; ``link``: to the others."""

    limits: Limits
    spec: EngineSpec
    strategy: Strategy
    planner: LatencyModel
    latency: LatencyModel
    noise: float = 0.0
    seed: int = 0
    role: Role = Role.MIXED
    link: Link = NO_TIME

    def policy(self, role: Role = Role.MIXED) -> Policy:
        """Of an executor that acts as this, with the budgets that the strategy has; a fixed one of 0 serves no
        offline work."""
        strategy, tolerance, budget_ms = self.strategy, None, self.strategy.budget_ms or None
        if strategy.latency_budget == "profiled":
            tolerance, budget_ms = strategy.tolerance, 0.0
        policy = strategy.policy(budget_ms, True, strategy.idle_budget_ms, tolerance, self.spec.is_interruptible)
        return replace(policy, role=role)

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
            role=self.role,
        )


def in_pools(setup: ExecutorSetup, num_executors: int, num_strict: int = 0) -> list[ExecutorSetup]:
    """So many alike, the first ``num_strict`` of them strict and the others relaxed; 0 leaves them as they are. Raises
    ValueError where none would be relaxed, and for KV that cannot move."""
    if num_strict >= num_executors:
        raise ValueError(f"{num_strict} of {num_executors} executors are strict: at least one must be relaxed")
    if not num_strict:
        return [setup] * num_executors
    if setup.strategy.why_no_pools:
        raise ValueError(setup.strategy.why_no_pools)
    strict, relaxed = replace(setup, role=Role.STRICT), replace(setup, role=Role.RELAXED)
    return [strict] * num_strict + [relaxed] * (num_executors - num_strict)


def acting_roles(setups: Sequence[ExecutorSetup]) -> list[Role]:
    """As what each acts beside the others, all of which take requests."""
    roles = [setup.role for setup in setups]
    return [acting_role(role, roles) for role in roles]
