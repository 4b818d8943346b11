"""The live flex requests of this gateway: the offline-queue has them run when there is time."""

import asyncio
import logging

from services.gateway.access.admission import no_room_for_flex
from services.gateway.live.generation import Generation
from services.gateway.live.metrics import GenerationMetrics
from services.gateway.live.registry import ExecutorRegistry
from services.gateway.live.tracker import Tracker
from shared.bus import Bus
from shared.cancellation import check_cancelled
from shared.clock import Clock
from shared.errors import BusError, NoResponderError
from shared.openai.errors import RequestError
from shared.process.tracing import NO_TRACING, Tracing
from shared.protocol.offline.flex import HOLD_PERIOD_S, FlexAnswer, FlexHeld, FlexSubmit, flex_batch
from shared.protocol.requests import AbortRequests, GenerateRequest
from shared.protocol.subjects import ModelSubjects
from shared.protocol.tokens import StepTokens
from shared.scheduling.request import Kind

logger = logging.getLogger(__name__)

RETRY_S = 0.5


class FlexGeneration(Generation):
    """An offline request whose client waits. Where it runs is not chosen here: it is known from its first token on."""

    kind = Kind.OFFLINE

    @property
    def wire_id(self) -> str:
        """As ``Generation.wire_id``; the offline-queue schedules it by what is before the dot."""
        return f"{flex_batch(self.sender.client_id)}.{super().wire_id}"

    def next_attempt(self, gateway_id: str) -> GenerateRequest:
        """Each is its trial: the offline-queue sees to it that suspects run apart."""
        self.begin_trial(self.lost_s)
        return super().next_attempt(gateway_id)


class FlexTracker(Tracker[FlexGeneration]):
    """The offline-queue may forget a request, and an executor may die with it, and it goes on from where it was.
    Executors know this as a gateway of its own, by its id."""

    generation_type = FlexGeneration

    def __init__(
        self,
        bus: Bus,
        of_model: ModelSubjects,
        registry: ExecutorRegistry,
        gateway_id: str,
        clock: Clock,
        metrics: GenerationMetrics,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        """``of_model``: where their model's offline-queue listens."""
        super().__init__(bus, registry, gateway_id, clock, metrics, tracing)
        self._of_model = of_model

    async def _start(self, generation: FlexGeneration) -> None:
        try:
            answer = await self._send(generation)
        except NoResponderError as error:
            raise no_room_for_flex("flex_away", "nobody takes them now") from error
        if answer.is_final:
            raise RequestError(f"{answer.refusal}: send them in several requests, or as a batch", "service_tier")
        if answer.refusal:
            raise no_room_for_flex("flex_requests", answer.refusal)

    async def _send_again(self, generation: FlexGeneration, until_s: float) -> None:
        """As long as nobody takes it, it is tried again."""
        while generation.finish_reason is None:
            check_cancelled()
            try:
                await self._send(generation)
                return
            except BusError:
                if self._clock.monotonic_s() > until_s:
                    raise
                await asyncio.sleep(RETRY_S)

    async def _send(self, generation: FlexGeneration) -> FlexAnswer:
        """One more attempt. Raises BusError; it counts as live in any case."""
        self._live.pop(generation.wire_id, None)
        replaces = generation.wire_id if generation.attempt else ""
        request, sender = generation.next_attempt(self._gateway_id), generation.sender
        message = FlexSubmit(
            request,
            sender.client_id,
            sender.client_weight,
            replaces,
            len(generation.crashes),
            generation.num_together,
        )
        self._hold(generation)
        return await self._bus.request(self._of_model.flex, message, FlexAnswer)

    async def _drop(self, generation: FlexGeneration) -> None:
        await self._bus.publish_or_drop(self._of_model.flex_drop, AbortRequests([generation.wire_id]))
        await super()._drop(generation)

    async def _on_step_tokens(self, step: StepTokens) -> None:
        await super()._on_step_tokens(step)
        finished = (output.request_id for output in step.outputs if output.finish_reason is not None)
        over = [request_id for request_id in finished if request_id not in self._live]
        if over:
            await self._bus.publish_or_drop(self._of_model.flex_drop, AbortRequests(over))

    async def _tend(self) -> None:
        """Keep the offline-queue's interest alive, and learn what it knows no more."""
        while True:
            while not self._live:
                self._has_live.clear()
                await self._has_live.wait()
            await asyncio.sleep(HOLD_PERIOD_S)
            check_cancelled()
            if not self._live:
                continue
            held = FlexHeld(self._gateway_id, list(self._live))
            try:
                answer = await self._bus.request(self._of_model.flex, held, FlexAnswer)
            except BusError as error:
                logger.warning("flex requests not renewed", extra={"requests": len(self._live), "why": str(error)})
                continue
            for request_id in answer.lost:
                generation = self._live.get(request_id)
                if generation is not None and not generation.is_lost:
                    self._lose(generation)
