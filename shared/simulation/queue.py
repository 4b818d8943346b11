"""The offline-queue in virtual time: the pool, and a scheduler for each executor."""

from collections.abc import Callable, Iterable, Sequence

from shared.offline_queue.offline_pool import OfflinePool, Packed
from shared.offline_queue.scheduler import Scheduler, why_never_held_by_any
from shared.protocol.handover import Taken
from shared.protocol.requests import AbortRequests, GenerateRequest
from shared.protocol.sampling import ENDS_WELL, FinishReason
from shared.protocol.steps import StepPlan, StepStarted
from shared.replica.outputs import Ended
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.request import Request
from shared.simulation.events import Events
from shared.simulation.executor import VirtualExecutor


class VirtualQueue:
    """Plans go out as step messages come in; executors that wait get theirs when there is work, or its time comes."""

    def __init__(
        self,
        order: FairShare,
        events: Events,
        send_plan: Callable[[StepPlan], None],
        send_abort: Callable[[str, AbortRequests], None],
        refuse: Callable[[list[Ended]], None],
    ) -> None:
        """``order``: an empty one; ``send_abort``: to the executor with this id; ``refuse``: hears of requests that no
        executor can hold."""
        self.pool = OfflinePool(order, self._serve_soon, lambda executor_id, request_ids: None)
        self._events = events
        self._send_plan = send_plan
        self._send_abort = send_abort
        self._refuse = refuse
        self._schedulers: dict[str, Scheduler] = {}
        self._serves_soon = False

    def attach(self, executor: VirtualExecutor) -> None:
        """Its scheduler."""
        scheduler = Scheduler(executor.info, self.pool, executor.tuning, self._events, self._why_hopeless)
        self._schedulers[executor.info.executor_id] = scheduler

    def add(self, requests: Iterable[tuple[Request, Packed]]) -> None:
        """As ``OfflinePool.keep``."""
        self.pool.keep(requests)

    def on_inbox(self, executor_id: str, request: GenerateRequest) -> Sequence[bytes]:
        """An online request is on its way to this executor. The hashes of its full blocks."""
        scheduler = self._schedulers[executor_id]
        scheduler.on_inbox(request)
        return scheduler.hashes_of(request.request_id)

    def on_step(self, message: StepStarted) -> None:
        """An executor's word."""
        scheduler = self._schedulers[message.executor_id]
        abort = scheduler.on_step(message)
        self._plan(scheduler)
        if abort is not None:
            self._send_abort(message.executor_id, abort)
        if message.idle:
            self._await_release(scheduler)

    def on_taken(self, taken: Taken) -> None:
        """A request of either kind goes on at another executor, before either of them says what it holds. One that was
        taken back meanwhile is aborted at that one's own word."""
        giver, taker = taken.giver.executor_id, taken.taker.executor_id
        self._schedulers[giver].gave(taken.request_id)
        if self.pool.move(taken.request_id, giver, taker):
            self._schedulers[taker].took(taken.request_id)

    def on_result(self, ended: Ended) -> None:
        """It is durable, here before the step message that tells of its end. What was aborted has none, and waits
        again once nobody holds it."""
        if ended.finish_reason is FinishReason.ABORT:
            return
        request_id = ended.sequence.request_id
        if ended.finish_reason in ENDS_WELL:
            self.pool.learn(request_id, ended.sequence.num_output_tokens)
        self.pool.discard([request_id])

    def _serve_soon(self) -> None:
        if not self._serves_soon:
            self._serves_soon = True
            self._events.at(self._events.now_s, self._serve)

    def _serve(self) -> None:
        self._serves_soon = False
        for scheduler in self._schedulers.values():
            self._plan(scheduler)
            self._await_release(scheduler)

    def _await_release(self, scheduler: Scheduler) -> None:
        """Where nothing but its rate holds requests back, an executor that waits gets one when its time has come."""
        next_s = scheduler.next_release_s()
        if next_s is not None:
            self._events.at(next_s, self._serve_soon)

    def _why_hopeless(self, request: Request) -> str:
        return why_never_held_by_any(request, self._schedulers.values())

    def _plan(self, scheduler: Scheduler) -> None:
        for plan in scheduler.plan():
            self._send_plan(plan)
        if refused := scheduler.take_refused():
            self._refuse(refused)
            self._serve_soon()
