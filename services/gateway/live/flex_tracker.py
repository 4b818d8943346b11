"""The flex requests of this gateway: hand over to the offline-queue, follow, resume, abort."""

from __future__ import annotations

import asyncio
import logging
import uuid

from services.gateway.access.admission import no_room_for_flex
from services.gateway.access.rate_limits import UNLIMITED, Reservation
from services.gateway.access.sender import Sender
from services.gateway.live.flex_generation import FlexGeneration
from services.gateway.live.generation import Generation
from services.gateway.live.metrics import FlexMetrics
from services.gateway.live.registry import ExecutorRegistry
from shared.bus import Bus
from shared.cancellation import check_cancelled
from shared.clock import Clock
from shared.errors import BusError, NoResponderError
from shared.openai.completions.requests import CompletionRequest
from shared.protocol import subjects
from shared.protocol.flex import HOLD_PERIOD_S, FlexAnswer, FlexHeld
from shared.protocol.messages import AbortRequests, StepTokens
from shared.protocol.sampling import FinishReason

logger = logging.getLogger(__name__)

RESUME_WAIT_S = 120.0  # for an offline-queue that takes a request again: a restart reads its batches first
RETRY_S = 0.5
MAX_LOSSES = 5


class FlexTracker:
    """Keeps every request and its tokens until its end: the offline-queue may forget it, and an executor may die with
    it, and it goes on from where it was. Executors know it as a gateway of its own, with ``gateway_id``."""

    def __init__(
        self, bus: Bus, registry: ExecutorRegistry, gateway_id: str, clock: Clock, metrics: FlexMetrics
    ) -> None:
        self._bus = bus
        self._gateway_id = f"{gateway_id}-flex"
        self._clock = clock
        self._metrics = metrics
        self._live: dict[str, FlexGeneration] = {}  # wire id -> request
        self._to_resume: asyncio.Queue[FlexGeneration] = asyncio.Queue()  # each live request at most once
        registry.on_lost.append(self._on_executor_lost)

    @property
    def num_live(self) -> int:
        return len(self._live)

    async def start(self) -> None:
        """Listen for tokens, and say so to executors that ask."""
        await self._bus.subscribe(subjects.tokens(self._gateway_id), StepTokens, self._on_step_tokens)
        await self._bus.serve(subjects.alive(self._gateway_id), object, self._on_alive)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hold_all())
            while True:
                generation = await self._to_resume.get()
                if generation.finish_reason is None:
                    await self._resume(generation)

    async def submit(
        self, request: CompletionRequest, sender: Sender, reservation: Reservation = UNLIMITED
    ) -> FlexGeneration:
        """It waits its turn from here on. The caller must ``close`` it; ``reservation`` is settled here. Raises
        Refusal (429) and BusError."""
        unix_s, now_s = self._clock.unix_s(), self._clock.monotonic_s()
        generation = FlexGeneration(uuid.uuid4().hex, request, sender, unix_s, now_s, reservation)
        try:
            refusal = await self._send(generation)
            if refusal:
                raise no_room_for_flex("flex_requests", refusal)
        except BaseException as error:
            self._live.pop(generation.wire_id, None)
            generation.end(FinishReason.ERROR)
            await self._drop(generation)
            if isinstance(error, NoResponderError):
                raise no_room_for_flex("flex_away", "nobody takes them now") from error
            raise
        logger.debug("request sent", extra=generation.log_ids)
        return generation

    async def close(self, generation: Generation) -> None:
        """The client has its answer or went away; what still waits or runs for it does no more."""
        found = self._live.pop(generation.wire_id, None)
        if found is not None:
            found.end(FinishReason.ABORT)
            self._metrics.finished(FinishReason.ABORT, len(found.output_token_ids))
            await self._drop(found)

    async def _send(self, generation: FlexGeneration) -> str:
        """One more attempt; why it is refused, or an empty text. Raises BusError; it counts as live in any case."""
        self._live.pop(generation.wire_id, None)
        message = generation.next_submit(self._gateway_id)
        self._live[generation.wire_id] = generation
        return (await self._bus.request(subjects.FLEX, message, FlexAnswer)).refusal

    async def _drop(self, generation: FlexGeneration) -> None:
        """Tell the offline-queue, and where it runs the executor too: either may be away."""
        await self._bus.publish_or_drop(subjects.FLEX_DROP, AbortRequests([generation.wire_id]))
        if generation.place is not None:
            await self._bus.publish_or_drop(subjects.inbox(generation.place[0]), AbortRequests([generation.wire_id]))

    async def _on_alive(self, _: object) -> int:
        return len(self._live)

    async def _on_step_tokens(self, step: StepTokens) -> None:
        for output in step.outputs:
            generation = self._live.get(output.request_id)
            if generation is None or generation.is_lost:
                continue
            if output.finish_reason is FinishReason.ABORT or not generation.continues(step, output):
                self._lose(generation)
                continue
            generation.place = (step.executor_id, step.epoch)
            generation.take(output)
            if output.finish_reason is not None:
                del self._live[generation.wire_id]
                self._metrics.finished(output.finish_reason, len(generation.output_token_ids))
                await self._bus.publish_or_drop(subjects.FLEX_DROP, AbortRequests([generation.wire_id]))

    def _on_executor_lost(self, executor_id: str, epoch: str) -> None:
        for generation in self._live.values():
            if generation.place == (executor_id, epoch) and not generation.is_lost:
                generation.num_executors_lost += 1
                self._lose(generation)

    def _lose(self, generation: FlexGeneration) -> None:
        generation.lost(self._clock.monotonic_s())
        self._to_resume.put_nowait(generation)

    async def _resume(self, generation: FlexGeneration) -> None:
        """From prompt plus tokens so far, under a new id; as long as nobody takes it, it is tried again."""
        while generation.finish_reason is None:
            check_cancelled()
            if generation.num_losses > MAX_LOSSES:
                self._fail(generation, f"given up after {generation.num_losses} losses")
                return
            try:
                await self._send(generation)
                break
            except BusError as error:
                if self._clock.monotonic_s() - generation.lost_s > RESUME_WAIT_S:
                    self._fail(generation, f"nobody takes it again: {error}")
                    return
                await asyncio.sleep(RETRY_S)
        if generation.finish_reason is None:
            self._metrics.resumed()
            num_tokens = len(generation.output_token_ids)
            logger.warning("request resumed", extra={**generation.log_ids, "num_tokens": num_tokens})
        else:  # its client left while it was sent
            await self._drop(generation)

    def _fail(self, generation: FlexGeneration, why: str) -> None:
        if self._live.pop(generation.wire_id, None) is not None:
            logger.error("request lost", extra={**generation.log_ids, "why": why})
            generation.end(FinishReason.ERROR, why)
            self._metrics.finished(FinishReason.ERROR, len(generation.output_token_ids))

    async def _hold_all(self) -> None:
        """Keep the offline-queue's interest alive, and learn what it knows no more."""
        while True:
            await asyncio.sleep(HOLD_PERIOD_S)
            check_cancelled()
            if not self._live:
                continue
            held = FlexHeld(self._gateway_id, list(self._live))
            try:
                answer = await self._bus.request(subjects.FLEX, held, FlexAnswer)
            except BusError as error:
                logger.warning("flex requests not renewed", extra={"requests": len(self._live), "why": str(error)})
                continue
            for request_id in answer.lost:
                generation = self._live.get(request_id)
                if generation is not None and not generation.is_lost:
                    self._lose(generation)
