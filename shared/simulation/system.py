"""Executors, the offline-queue and the router in virtual time, and what goes between them."""

from collections.abc import Callable, Sequence
from functools import partial

from shared.protocol.handover import Carried, Taken
from shared.protocol.requests import AbortRequests, GenerateRequest
from shared.protocol.steps import StepPlan, StepStarted
from shared.replica.outputs import Ended
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.placement.pulling import Preference
from shared.scheduling.placement.routing import choose
from shared.scheduling.request import OFFLINE
from shared.simulation.events import Events
from shared.simulation.executor import Progress, VirtualExecutor
from shared.simulation.handovers import VirtualHandovers
from shared.simulation.queue import VirtualQueue
from shared.simulation.router import Choose, VirtualRouter
from shared.simulation.setup import ExecutorSetup, acting_roles

HEARTBEAT_S = 1.0


class VirtualSystem:
    """Feeds the live system's objects with the messages that services send each other. ``events`` is its clock: run
    them to go on."""

    def __init__(
        self,
        setups: Sequence[ExecutorSetup],
        order: FairShare,
        on_progress: Callable[[Progress], None],
        message_s: float = 0.0,
        choose: Choose = choose,
    ) -> None:
        """``setups``: one for each executor; ``order``: the pool's, empty; ``on_progress``: hears of tokens and ends;
        ``message_s``: what a message takes on the bus; ``choose``: which executor gets an online request. Raises
        ValueError for a strategy that lacks a knob."""
        self.events = Events()
        self.queue = VirtualQueue(order, self.events, self._send_plan, self._send_abort, self._refuse)
        self.executors = {
            f"executor-{index}": VirtualExecutor(
                f"executor-{index}",
                setup,
                role,
                self.events,
                self._send_step,
                self._send_progress,
                partial(self._give, f"executor-{index}"),
                partial(self._pull, f"executor-{index}"),
            )
            for index, (setup, role) in enumerate(zip(setups, acting_roles(setups), strict=True))
        }
        self.router = VirtualRouter(self.executors, choose)
        self._handovers = VirtualHandovers(self.executors, setups[0].link, self.events, self._send, self._send_taken)
        self._beats = False  # a heartbeat is to come
        self._on_progress = on_progress
        self._message_s = message_s
        for executor in self.executors.values():
            self.queue.attach(executor)
            self.events.at(0.0, executor.announce)

    def submit(self, request: GenerateRequest) -> None:
        """An online request comes now: it reaches its executor and that one's scheduler at the same time."""
        executor_id = self.router.route(request)

        def arrive() -> None:
            self.executors[executor_id].submit(request, self.queue.on_inbox(executor_id, request))

        self._send(arrive)
        self._beat_soon()

    def _send_step(self, message: StepStarted) -> None:
        def deliver() -> None:
            self.router.on_step(message)
            self.queue.on_step(message)

        self._send(deliver)
        self._beat_soon()

    def _give(self, executor_id: str, carried: Carried) -> None:
        self._handovers.give(executor_id, carried)

    def _pull(self, executor_id: str, wanted: Preference) -> None:
        self._handovers.pull(executor_id, wanted)

    def _send_taken(self, taken: Taken) -> None:
        def deliver() -> None:
            self.router.on_taken(taken)
            self.queue.on_taken(taken)

        self._send(deliver)

    def _send_plan(self, plan: StepPlan) -> None:
        self._send(lambda: self.executors[plan.executor_id].take_plan(plan))

    def _send_abort(self, executor_id: str, abort: AbortRequests) -> None:
        self._send(lambda: self.executors[executor_id].abort(abort.request_ids))

    def _refuse(self, refused: list[Ended]) -> None:
        self._on_progress(Progress("", self.events.now_s, self.events.now_s, [], refused))

    def _send_progress(self, progress: Progress) -> None:
        def deliver() -> None:
            self.router.on_progress(progress)
            for ended in progress.ended:
                if ended.sequence.kind is OFFLINE:
                    self.queue.on_result(ended)
            self._on_progress(progress)

        self._send(deliver)

    def _beat_soon(self) -> None:
        """While there is something to tell."""
        if (self.router.has_open or self._handovers.is_busy) and not self._beats:
            self._beats = True
            self.events.at(self.events.now_s + HEARTBEAT_S, self._beat)

    def _beat(self) -> None:
        self._beats = False
        self.router.on_heartbeats()
        self._handovers.on_heartbeats()
        self._beat_soon()

    def _send(self, deliver: Callable[[], None]) -> None:
        if self._message_s:
            self.events.at(self.events.now_s + self._message_s, deliver)
        else:
            deliver()
