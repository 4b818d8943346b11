"""The live online requests of this gateway: each goes to the executor that is expected to answer it first."""

from services.gateway.access.waiting_room import WaitingRoom
from services.gateway.live.generation import OnlineGeneration
from services.gateway.live.metrics import GenerationMetrics
from services.gateway.live.online_reporter import OnlineReporter
from services.gateway.live.router import Router
from services.gateway.live.tracker import Tracker
from shared.bus import Bus
from shared.clock import Clock
from shared.process.tracing import NO_TRACING, Tracing
from shared.protocol import subjects
from shared.protocol.requests import AbortRequests, HeldRequests
from shared.protocol.sampling import FinishReason

MAX_MISSED = 3  # comparisons: what an executor has ended may be on its way here
SUBMIT_WAIT_S = 5.0  # for a first executor; then the client is told to come back


class OnlineTracker(Tracker[OnlineGeneration]):
    """An executor that is lost may only have been silent: what it holds of ours is aborted before it is resumed."""

    generation_type = OnlineGeneration

    def __init__(
        self,
        bus: Bus,
        router: Router,
        gateway_id: str,
        clock: Clock,
        metrics: GenerationMetrics,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        super().__init__(bus, router.registry, gateway_id, clock, metrics, tracing)
        self._router = router
        self._reporter = OnlineReporter(bus, gateway_id, clock)
        self.room = WaitingRoom()

    async def _start(self, generation: OnlineGeneration) -> None:
        num_tokens = len(generation.request.prompt_token_ids)
        self.room.enter(generation.request_id, generation.sender.client_id, num_tokens, generation.started_s)
        await self._send(generation, SUBMIT_WAIT_S)

    async def _send_again(self, generation: OnlineGeneration, until_s: float) -> None:
        await self._drop(generation)
        await self._send(generation, max(0.0, until_s - self._clock.monotonic_s()))

    async def _send(self, generation: OnlineGeneration, wait_s: float) -> None:
        token_ids = generation.request.prompt_token_ids + generation.output_token_ids
        routing = self._tracing.begin_within("route", self._clock.unix_s(), generation.span.traceparent)
        try:
            route = await self._router.route_within(token_ids, wait_s, generation.sampling.kv_scope)
            routing.say({"slackwater.executor_id": route.target.executor_id})
        finally:
            routing.end(self._clock.unix_s())
        if generation.finish_reason is not None:  # its client left meanwhile
            route.end()
            return
        self._live.pop(generation.wire_id, None)
        message = generation.next_attempt(self._gateway_id)
        generation.route, generation.place = route, (route.target.executor_id, route.target.epoch)
        self._hold(generation)
        self._reporter.started(generation)
        await self._bus.publish(subjects.inbox(route.target.executor_id), message)

    async def _on_held(self, held: HeldRequests) -> AbortRequests:
        """What the executor should hold and does not was lost on the way, there or back: it is sent again."""
        place, request_ids = (held.executor_id, held.epoch), dict.fromkeys(held.request_ids)
        for generation in list(self._live.values()):
            if generation.place == place and not generation.is_lost:
                generation.num_missed = 0 if generation.wire_id in request_ids else generation.num_missed + 1
                if generation.num_missed >= MAX_MISSED:
                    self._lose(generation)
        return await super()._on_held(held)

    def _move(self, generation: OnlineGeneration, giver: tuple[str, str], place: tuple[str, str]) -> None:
        self._reporter.lost(generation)
        super()._move(generation, giver, place)
        self._reporter.moved(generation)
        taker = self._registry.incarnation(place)
        if generation.route is not None and taker is not None:
            generation.route = taker.target.take_over(generation.route)

    async def _tend(self) -> None:
        await self._reporter.run()

    def _progress(self, generation: OnlineGeneration, num_tokens: int, now_s: float) -> None:
        super()._progress(generation, num_tokens, now_s)
        self._reporter.tokens(generation, now_s)
        self.room.start(generation.request_id, now_s)

    def _lose(self, generation: OnlineGeneration) -> None:
        self._reporter.lost(generation)
        super()._lose(generation)

    def _forget(self, generation: OnlineGeneration) -> None:
        super()._forget(generation)
        self._reporter.lost(generation)
        self.room.leave(generation.request_id)

    def _end(self, generation: OnlineGeneration, finish_reason: FinishReason, why: str = "") -> None:
        was_answered = finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        if was_answered:  # an embedding has no token by which it would have started
            self.room.start(generation.request_id, self._clock.monotonic_s())
        super()._end(generation, finish_reason, why)
        if was_answered and generation.request.sampling.max_tokens:
            self._router.lengths.add(len(generation.output_token_ids))
        self._reporter.ended(generation, was_answered)
