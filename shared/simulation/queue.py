"""The offline-queue in virtual time: the pool, and a scheduler for each executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shared.protocol.messages import AbortRequests, GenerateRequest, StepPlan, StepStarted
from shared.replica.offline_pool import OfflinePool, Packed
from shared.replica.scheduler import AsyncScheduler
from shared.scheduling.orders.offline import OfflineOrder
from shared.scheduling.orders.offline_rate import OfflineRate
from shared.scheduling.request import Request
from shared.simulation.events import Events
from shared.simulation.executor import VirtualExecutor


@dataclass(frozen=True, slots=True)
class _Attached:
    scheduler: AsyncScheduler
    rate: OfflineRate


class VirtualQueue:
    """Plans go out as step messages come in; executors that wait get theirs when there is work, or its time comes."""

    def __init__(
        self,
        order: OfflineOrder,
        make_rate: Callable[[], OfflineRate],
        events: Events,
        send_plan: Callable[[StepPlan], None],
        send_abort: Callable[[str, AbortRequests], None],
    ) -> None:
        """``make_rate``: that of one executor; ``send_abort``: to the executor with this id."""
        self.num_entered = 0  # requests, by plans
        self.pool = OfflinePool(order, self._serve_soon, lambda executor_id, request_ids: None)
        self._make_rate = make_rate
        self._events = events
        self._send_plan = send_plan
        self._send_abort = send_abort
        self._attached: dict[str, _Attached] = {}
        self._serves_soon = False

    def attach(self, executor: VirtualExecutor) -> None:
        """Its scheduler."""
        rate = self._make_rate()
        scheduler = AsyncScheduler(executor.info, self.pool, executor.setup.tuning, self._events, rate)
        self._attached[executor.info.executor_id] = _Attached(scheduler, rate)

    def add(self, requests: Iterable[tuple[Request, bytes, Packed]]) -> None:
        """As ``OfflinePool.keep``."""
        self.pool.keep(requests)

    def on_inbox(self, executor_id: str, request: GenerateRequest) -> None:
        """An online request is on its way to this executor."""
        self._attached[executor_id].scheduler.on_inbox(request)

    def on_step(self, message: StepStarted) -> None:
        """An executor's word."""
        attached = self._attached[message.executor_id]
        plans, abort = attached.scheduler.on_step(message)
        self._send(plans)
        if abort is not None:
            self._send_abort(message.executor_id, abort)
        if message.idle and not plans:
            self._await_release(attached.rate)

    def on_result(self, request_id: str) -> None:
        """It is durable."""
        self.pool.discard([request_id])

    def _serve_soon(self) -> None:
        if not self._serves_soon:
            self._serves_soon = True
            self._events.at(self._events.now_s, self._serve_idle)

    def _serve_idle(self) -> None:
        self._serves_soon = False
        for attached in self._attached.values():
            plans = attached.scheduler.plan_idle()
            self._send(plans)
            if not plans:
                self._await_release(attached.rate)

    def _await_release(self, rate: OfflineRate) -> None:
        """Where nothing but the rate holds requests back, an executor that waits gets one when its time has come."""
        next_s = rate.next_s(self._events.now_s) if self.pool.num_waiting else None
        if next_s is not None:
            self._events.at(next_s, self._serve_soon)

    def _send(self, plans: list[StepPlan]) -> None:
        for plan in plans:
            self.num_entered += len(plan.admitted)
            self._send_plan(plan)
