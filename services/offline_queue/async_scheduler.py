"""ASYNC_SCHEDULER of HyGen Alg. 2 (lines 5-21) for one executor."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from services.offline_queue.pool import FcfsPool
from shared.clock import Clock
from shared.latency.model import LatencyModel
from shared.protocol.messages import (
    AbortRequests,
    ExecutorInfo,
    FinishReason,
    GenerateRequest,
    InboxMessage,
    PlanEntry,
    StepPlan,
    StepStarted,
)
from shared.scheduling.batch import Limits, Policy, Schedule, ScheduledRequest
from shared.scheduling.mirror import ExecutorMirror
from shared.scheduling.online_order import online_order_named
from shared.scheduling.request import Kind, Request

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A snapshot; times in milliseconds of one planning, publishing not counted."""

    plans: int
    plan_ms_mean: float
    plan_ms_max: float


class AsyncScheduler:
    """Synchronous: the service feeds it messages and sends what it returns."""

    def __init__(
        self,
        info: ExecutorInfo,
        pool: FcfsPool,
        tuning: Callable[[], tuple[Policy, LatencyModel]],
        clock: Clock,
    ) -> None:
        self.info = info
        self._pool = pool
        self._tuning = tuning
        self._clock = clock
        self._mirror = ExecutorMirror(
            Limits(info.block_size, info.num_blocks, info.max_num_batched_tokens, info.max_num_seqs),
            online_order_named(info.online_order, info.vtc_weight_input, info.vtc_weight_output),
        )
        self._idle_step: int | None = None  # the step that an idle executor waits to be given
        self._plans = 0
        self._plan_s_total = 0.0
        self._plan_s_max = 0.0

    def on_inbox(self, message: InboxMessage) -> None:
        """An online request reaches executor and scheduler at the same time; so does an abort."""
        if isinstance(message, GenerateRequest):
            num_tokens = len(message.prompt_token_ids) + len(message.output_token_ids)
            total = len(message.prompt_token_ids) + message.sampling.max_tokens
            total = min(total, self.info.max_model_len)
            self._mirror.arrive(
                Request(message.request_id, message.kind, num_tokens, total, client_id=message.client_id)
            )
        else:
            for request_id in message.request_ids:
                self._mirror.depart(request_id)

    def on_step(self, message: StepStarted) -> tuple[StepPlan | None, AbortRequests | None]:
        """Q_send.get: take over the executor's word, assume the running step's outcome, plan the next step.
        Returns the plan, if one is due, and what the executor should stop running."""
        if message.epoch != self.info.epoch:
            return None, None
        states = [
            Request(
                s.request_id,
                s.kind,
                s.num_tokens,
                s.max_total_tokens,
                s.num_computed_tokens,
                s.num_blocks,
                s.client_id,
                s.was_admitted,
            )
            for s in message.states
        ]
        ended = [each.request_id for each in message.ended]
        self._mirror.observe(states, ended, message.num_free_blocks, message.client_counters)
        unwanted = self._settle(message)
        if message.idle:
            self._idle_step = message.step
            plan = self.plan_idle()
        else:
            self._idle_step = None
            self._mirror.assume(ScheduledRequest(e.request_id, e.kind, e.num_scheduled_tokens) for e in message.entries)
            plan = self._plan(message.step + 1)
        return plan, AbortRequests(unwanted) if unwanted else None

    def plan_idle(self) -> StepPlan | None:
        """A plan for an executor that waits for work; None where it runs, or where there is nothing to give it."""
        if self._idle_step is None:
            return None
        plan = self._plan(self._idle_step)
        if not plan.entries:
            return None
        self._idle_step = None
        return plan

    def holds(self, request_id: str) -> bool:
        """The executor is expected to hold this request."""
        return request_id in self._mirror.table

    def stats(self) -> SchedulerStats:
        mean_s = self._plan_s_total / self._plans if self._plans else 0.0
        return SchedulerStats(self._plans, mean_s * 1e3, self._plan_s_max * 1e3)

    def _settle(self, message: StepStarted) -> list[str]:
        held = [state.request_id for state in message.states if state.kind is Kind.OFFLINE]
        ended = [e.request_id for e in message.ended if e.finish_reason is not FinishReason.ABORT]
        unwanted = self._pool.settle(self.info.executor_id, held, ended)
        for request_id in unwanted:
            self._mirror.depart(request_id)
        return unwanted

    def _plan(self, step: int) -> StepPlan:
        start_s = self._clock.monotonic_s()
        policy, model = self._tuning()
        schedule = self._mirror.plan(self._pool.in_order(), policy, model)
        plan = self._message(step, schedule)
        elapsed_s = self._clock.monotonic_s() - start_s
        self._plans += 1
        self._plan_s_total += elapsed_s
        self._plan_s_max = max(self._plan_s_max, elapsed_s)
        return plan

    def _message(self, step: int, schedule: Schedule) -> StepPlan:
        """Q_recv.send(B, t, m), with the prompt of each offline request that enters."""
        entering = [
            entry.request_id
            for entry in schedule.entries
            if entry.kind is Kind.OFFLINE and entry.request_id not in self._mirror.table
        ]
        return StepPlan(
            executor_id=self.info.executor_id,
            epoch=self.info.epoch,
            step=step,
            entries=[PlanEntry(e.request_id, e.kind, e.num_scheduled_tokens) for e in schedule.entries],
            admitted=[self._pool.take(request_id, self.info.executor_id) for request_id in entering],
            preempted=schedule.preempted,
            latency_ms=schedule.latency_ms,
        )
