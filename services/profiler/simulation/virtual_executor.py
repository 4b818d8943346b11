"""One executor and its scheduler in virtual time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from services.profiler.simulation.backlog import Backlog
from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.latency.swap import SwapModel
from shared.protocol.messages import EngineSpec, GenerateRequest
from shared.replica.engine import StepResult
from shared.replica.replica import AddressedOutput, Ended, Replica
from shared.replica.sequence import LiveSequence
from shared.scheduling.batch import Limits, Schedule
from shared.scheduling.orders.offline.view import OfflineView
from shared.scheduling.packing.packings import packing_named
from shared.scheduling.request import Kind, Request
from shared.scheduling.strategy import Strategy

FIRST_OUTPUT_ID = 1 << 24  # beyond every vocabulary, so that no output looks like a prompt
NUM_OUTPUT_IDS = 1 << 24


@dataclass(frozen=True, slots=True)
class ExecutorSetup:
    """What is fixed about a simulated executor.

    ``planner``: what schedules are made with; ``latency``: how long steps take, times a factor that is lognormal
    with ``noise`` as its sigma, drawn anew for each step from ``seed``; ``swap``: how long its copies of KV slots take
    beside that.
    """

    limits: Limits
    spec: EngineSpec
    strategy: Strategy
    planner: LatencyModel
    latency: LatencyModel
    noise: float = 0.0
    seed: int = 0
    swap: SwapModel = field(default_factory=SwapModel)


@dataclass(frozen=True, slots=True)
class Step:
    """A step that ran: who gained a token with others to come, and who left."""

    end_s: float
    outputs: list[AddressedOutput]
    ended: list[Ended]


class VirtualExecutor:
    """HyGen Alg. 2 without its queues. The plan of a step is made while the one before it runs, from that one's
    expected outcome: here it is made when the step has ended and before any later arrival is told, which is the same
    since the outcome is as expected (lengths are known, no EOS). It is then reconciled with what has arrived."""

    def __init__(
        self,
        setup: ExecutorSetup,
        backlog: Backlog | None,
    ) -> None:
        self._setup = setup
        self._backlog = backlog
        self._rate = setup.strategy.make_offline_rate()
        self._policy = setup.strategy.policy(setup.strategy.budget_ms, idle_budget_ms=setup.strategy.idle_budget_ms)
        self._now_ms = 0.0
        self._replica = Replica(setup.limits, setup.spec, None, setup.strategy, lambda: self._now_ms)
        self._packing = packing_named(setup.strategy.packing)
        self._noise = random.Random(f"{setup.seed}:noise")
        self._plan: Schedule | None = None
        self._planned_for_ms = 0.0
        self._has_arrivals = False  # since the plan was made
        self.num_steps = 0
        self.num_offline_entered = 0
        self.longest_plan_ms = 0.0  # of any batch that was planned; under a longer budget all would be the same

    @property
    def replica(self) -> Replica:
        return self._replica

    def submit(self, request: GenerateRequest) -> None:
        """An online request arrives."""
        self._now_ms = request.arrival_s * 1e3
        self._replica.submit(request)
        self._has_arrivals = True

    def run_step(self, now_s: float) -> Step | None:
        """Start a step now and run it to its end; None where there is nothing to run."""
        self._now_ms = now_s * 1e3
        running = self._next_batch(now_s)
        if not running:
            return None
        features, sampled = _outcome(running)
        latency_ms = self._setup.latency.predict_ms(features)
        if self._setup.noise > 0:
            latency_ms *= self._noise.lognormvariate(0.0, self._setup.noise)
        operations = self._replica.operations
        swap_ms = self._setup.swap.predict_ms(len(operations.restores), len(operations.checkpoints))
        latency_ms = max(latency_ms, swap_ms)
        end_s = now_s + latency_ms / 1e3
        self._now_ms = end_s * 1e3
        outputs = self._replica.finish(StepResult(sampled, latency_ms))
        ended = self.take_ended()
        if self._packing.uses_time:  # the plan is made before the step has ended
            self._now_ms = (now_s + self._setup.planner.predict_ms(features) / 1e3) * 1e3
        self._make_plan(now_s)
        self.num_steps += 1
        return Step(end_s, outputs, [*ended, *self.take_ended()])

    def take_ended(self) -> list[Ended]:
        """Who left since the last step: requests that can never run here."""
        ended = self._replica.take_ended()
        for each in ended:
            if self._backlog is not None and each.sequence.kind is Kind.OFFLINE:
                self._backlog.end(self._now_ms / 1e3)
        return ended

    def next_s(self, now_s: float) -> float | None:
        """When the next offline request may enter; None where that is not what an idle executor waits for."""
        return self._rate.next_s(now_s) if self._backlog and len(self._backlog) > 0 else None

    def _next_batch(self, now_s: float) -> list[tuple[LiveSequence, int]]:
        """As the live loop has it: the plan; else one made here over what is held; else, idle, the scheduler's."""
        plan, self._plan = self._plan, None
        if plan is not None and (running := self._take(plan)):
            return running
        policy, planner = self._policy, self._setup.planner
        if self._replica.has_work and (running := self._allocate(self._replica.schedule(None, policy, planner))):
            return running
        self._make_plan(now_s)
        plan, self._plan = self._plan, None
        return self._take(plan) if plan is not None else []

    def _take(self, plan: Schedule) -> list[tuple[LiveSequence, int]]:
        if not self._stands(plan):
            plan = self._replica.reconcile(plan.entries, plan.preempted, self._policy, self._setup.planner)
        return self._allocate(plan)

    def _allocate(self, plan: Schedule) -> list[tuple[LiveSequence, int]]:
        self.longest_plan_ms = max(self.longest_plan_ms, plan.latency_ms)
        return self._replica.allocate(plan)

    def _stands(self, plan: Schedule) -> bool:
        """Nothing is different from what the plan was made from, so that reconciling it would change nothing."""
        replica = self._replica
        return (
            not self._has_arrivals
            and not (self._packing.uses_time and self._now_ms != self._planned_for_ms)
            and not plan.preempted
            and replica.pool.num_offline_only == replica.table.num_blocks(Kind.OFFLINE)
        )

    def _make_plan(self, now_s: float) -> None:
        """Both phases over what is held and the backlog; offline requests of the plan enter."""
        self._replica.update_paused()
        self._planned_for_ms = self._now_ms
        table = self._replica.table
        num_offline = self._setup.strategy.sharing.num_offline_blocks(
            table.num_blocks(Kind.OFFLINE), table.num_blocks_in_flight(Kind.OFFLINE)
        )
        state = self._replica.step_state(self._policy, self._setup.planner)
        state = replace(state, num_offline_blocks=num_offline)  # as far as a scheduler knows
        self._plan = plan = self._packing.schedule(state, lambda view: self._waiting(view, now_s))
        self.longest_plan_ms = max(self.longest_plan_ms, plan.latency_ms)
        self._has_arrivals = False
        if self._backlog is not None:
            self._let_in(plan, self._backlog)

    def _waiting(self, view: OfflineView, now_s: float) -> Iterator[Request]:
        return self._rate.open(self._backlog.in_order(view), now_s) if self._backlog is not None else iter(())

    def _let_in(self, plan: Schedule, backlog: Backlog) -> None:
        entering = [
            entry.request_id
            for entry in plan.entries
            if entry.kind is Kind.OFFLINE and entry.request_id not in self._replica.table
        ]
        for request_id in entering:
            self._replica.submit(backlog.take(request_id))
        self._rate.enter(len(entering))
        self.num_offline_entered += len(entering)


def _outcome(running: list[tuple[LiveSequence, int]]) -> tuple[BatchFeatures, dict[str, int]]:
    """The batch's features, and a token for each request whose last known token is computed."""
    features = BatchFeatures()
    sampled = {}
    for sequence, num_tokens in running:
        request = sequence.request
        num_computed_tokens = request.num_computed_tokens
        features.add_scheduled(num_tokens, num_computed_tokens)
        if num_computed_tokens + num_tokens == request.num_tokens:
            sampled[request.request_id] = FIRST_OUTPUT_ID + sequence.sampling.seed % NUM_OUTPUT_IDS
    return features, sampled
