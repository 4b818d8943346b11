"""The live requests of this gateway: submit, follow, resume on another executor, abort."""

from __future__ import annotations

import asyncio
import logging
import uuid

from services.gateway.access.rate_limits import UNLIMITED, Reservation
from services.gateway.access.sender import Sender
from services.gateway.access.waiting_room import WaitingRoom
from services.gateway.live.generation import Generation
from services.gateway.live.metrics import GenerationMetrics
from services.gateway.live.online_reporter import OnlineReporter
from services.gateway.live.registry import ExecutorRegistry
from services.gateway.live.router import Router
from shared.bus import Bus
from shared.clock import Clock
from shared.errors import BusError, NoExecutorError
from shared.openai.completions.requests import CompletionRequest
from shared.protocol import subjects
from shared.protocol.messages import AbortRequests, StepTokens, TokenOutput
from shared.protocol.sampling import FinishReason
from shared.scheduling.placement.routing import Route

logger = logging.getLogger(__name__)

SUBMIT_WAIT_S = 5.0  # for a first executor; then the client is told to come back
RESUME_WAIT_S = 120.0  # for an executor that takes over a live request: a restart loads the model again
MAX_ATTEMPTS = 6


class RequestTracker:
    """Holds every live request's tokens, so that one whose executor is lost goes on elsewhere from where it was.

    An executor that is lost may only have been silent: what it still holds of ours is aborted before it is resumed.
    """

    def __init__(
        self,
        bus: Bus,
        registry: ExecutorRegistry,
        router: Router,
        gateway_id: str,
        clock: Clock,
        metrics: GenerationMetrics,
    ) -> None:
        self._bus = bus
        self._router = router
        self._gateway_id = gateway_id
        self._clock = clock
        self._metrics = metrics
        self._reporter = OnlineReporter(bus, gateway_id, clock)
        self.room = WaitingRoom()
        self._live: dict[str, Generation] = {}  # wire id -> request
        self._to_resume: asyncio.Queue[Generation] = asyncio.Queue()  # each live request at most once
        registry.on_lost.append(self._on_executor_lost)

    @property
    def num_live(self) -> int:
        return len(self._live)

    async def start(self) -> None:
        """Listen for tokens, and say so to executors that ask."""
        await self._bus.subscribe(subjects.tokens(self._gateway_id), StepTokens, self._on_step_tokens)
        await self._bus.serve(subjects.alive(self._gateway_id), object, self._on_alive)

    async def run(self) -> None:
        """Resume requests whose executor is gone, in the order in which they lost it; report what users get."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reporter.run())
            while True:
                generation = await self._to_resume.get()
                if generation.finish_reason is None:
                    await self._resume(generation)

    async def submit(
        self, request: CompletionRequest, sender: Sender, reservation: Reservation = UNLIMITED
    ) -> Generation:
        """Send it to an executor. The caller must ``close`` it; ``reservation`` is settled here. Raises NoExecutorError
        and BusError."""
        unix_s, now_s = self._clock.unix_s(), self._clock.monotonic_s()
        generation = Generation(uuid.uuid4().hex, request, sender, unix_s, now_s, reservation)
        self.room.enter(generation.request_id, sender.client_id, len(request.prompt_token_ids), now_s)
        try:
            await self._send(generation, await self._router.route_within(generation.token_ids, SUBMIT_WAIT_S))
        except BaseException:
            self.room.leave(generation.request_id)
            generation.end(FinishReason.ERROR)
            if self._live.pop(generation.wire_id, None) and generation.executor_id is not None:
                self._reporter.lost(generation.executor_id, generation)
            raise
        self._metrics.started(len(request.prompt_token_ids))
        logger.debug("request sent", extra=generation.log_ids)
        return generation

    async def close(self, generation: Generation) -> None:
        """The client has its answer or went away; what still runs for it is aborted."""
        if self._live.pop(generation.wire_id, None) is None:
            return
        self.room.leave(generation.request_id)
        generation.end(FinishReason.ABORT)
        self._reporter.ended(generation, was_answered=False)
        if generation.executor_id is not None:
            await self._abort(generation.executor_id, generation.wire_id)

    async def _abort(self, executor_id: str, wire_id: str) -> None:
        try:
            await self._bus.publish(subjects.inbox(executor_id), AbortRequests([wire_id]))
        except BusError as error:
            logger.warning("abort not sent", extra={"request_id": wire_id, "why": str(error)})

    async def _on_alive(self, _: object) -> int:
        return len(self._live)

    async def _on_step_tokens(self, step: StepTokens) -> None:
        now_s = self._clock.monotonic_s()
        for output in step.outputs:
            generation = self._live.get(output.request_id)
            if generation is None or not generation.runs_at(step.executor_id, step.epoch):
                continue
            if output.finish_reason is FinishReason.ABORT or generation.misses_before(output):
                self._lose(generation)
                continue
            self._take(generation, output, now_s)

    def _take(self, generation: Generation, output: TokenOutput, now_s: float) -> None:
        if output.token_ids:
            self._metrics.tokens(generation.started_s, generation.last_token_s, now_s, len(output.token_ids))
            self._reporter.tokens(generation, now_s)
            generation.last_token_s = now_s
            self.room.start(generation.request_id, now_s)
        generation.take(output)
        if output.finish_reason is not None:
            del self._live[generation.wire_id]
            self.room.leave(generation.request_id)
            self._metrics.finished(output.finish_reason, generation.num_cached_tokens)
            was_answered = output.finish_reason is not FinishReason.ERROR
            if was_answered:
                self._router.ended(len(generation.output_token_ids))
            self._reporter.ended(generation, was_answered)

    def _on_executor_lost(self, executor_id: str, epoch: str) -> None:
        for generation in list(self._live.values()):
            if generation.runs_at(executor_id, epoch):
                self._lose(generation)

    def _lose(self, generation: Generation) -> None:
        if generation.executor_id is not None:
            self._reporter.lost(generation.executor_id, generation)
        generation.lost_executor(self._clock.monotonic_s())
        self._to_resume.put_nowait(generation)

    async def _resume(self, generation: Generation) -> None:
        """From prompt plus tokens so far, under a new id."""
        if generation.lost_executor_id is not None:
            await self._abort(generation.lost_executor_id, generation.wire_id)
        try:
            if generation.attempt >= MAX_ATTEMPTS:
                raise NoExecutorError(f"given up after {generation.attempt} executors")
            route = await self._router.route_within(generation.token_ids, self._resume_wait_s(generation))
            if self._live.pop(generation.wire_id, None) is None:
                route.end()
                return
            await self._send(generation, route)
        except (NoExecutorError, BusError) as error:
            self._fail(generation, str(error))
            return
        self._metrics.resumed()
        logger.warning("request resumed", extra={**generation.log_ids, "num_tokens": len(generation.output_token_ids)})

    async def _send(self, generation: Generation, route: Route) -> None:
        """One more attempt, at this executor. Raises BusError; it counts as live in any case."""
        message = generation.next_attempt(route, self._gateway_id)
        self._live[generation.wire_id] = generation
        self._reporter.started(generation)
        await self._bus.publish(subjects.inbox(route.target.executor_id), message)

    def _resume_wait_s(self, generation: Generation) -> float:
        return max(0.0, generation.lost_s + RESUME_WAIT_S - self._clock.monotonic_s())

    def _fail(self, generation: Generation, why: str) -> None:
        if self._live.pop(generation.wire_id, None) is None:
            return
        if generation.executor_id is not None:
            self._reporter.lost(generation.executor_id, generation)
        self.room.leave(generation.request_id)
        logger.error("request lost", extra={**generation.log_ids, "why": why})
        generation.end(FinishReason.ERROR, why)
        self._metrics.finished(FinishReason.ERROR, generation.num_cached_tokens)
