"""The live requests of one kind: submit, follow, send again when their executor is lost, abort."""

import asyncio
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from services.gateway.access.rate_limits import UNLIMITED, Share
from services.gateway.live.generation import Generation, Sender
from services.gateway.live.metrics import GenerationMetrics
from services.gateway.live.registry import ExecutorRegistry
from shared.bus import Bus, Subscription
from shared.cancellation import check_cancelled
from shared.clock import Clock
from shared.errors import NoExecutorError, SlackwaterError
from shared.openai.completions.requests import CHAT, CompletionRequest
from shared.process.tracing import NO_TRACING, Attributes, Span, Tracing
from shared.protocol import subjects
from shared.protocol.handover import Taken
from shared.protocol.requests import AbortRequests, HeldRequests
from shared.protocol.sampling import FinishReason
from shared.protocol.tokens import StepTokens, TokenOutput

logger = logging.getLogger(__name__)

RESUME_WAIT_S = 120.0  # for who takes a live request over: a restart reads its model, or its batches, again
MAX_LOSSES = 6  # in a row without a token between them, for no reason that is known
MAX_CRASHES = 5  # executors that died with a request until it is given up

G = TypeVar("G", bound=Generation)


class Tracker(ABC, Generic[G]):
    """Holds every live request's tokens, so that one whose executor is lost goes on elsewhere from where it was."""

    generation_type: type[G]

    def __init__(
        self,
        bus: Bus,
        registry: ExecutorRegistry,
        gateway_id: str,
        clock: Clock,
        metrics: GenerationMetrics,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        """``gateway_id``: where executors send the tokens of this kind."""
        self._bus = bus
        self._registry = registry
        self._gateway_id = gateway_id
        self._clock = clock
        self._metrics = metrics
        self._tracing = tracing
        self._live: dict[str, G] = {}  # wire id -> request
        self._has_live = asyncio.Event()  # set when one becomes live
        self.on_live: list[Callable[[], None]] = []  # each is called then
        self._to_resume: asyncio.Queue[G] = asyncio.Queue()  # each live request at most once
        self._suspects: asyncio.Queue[G] = asyncio.Queue()  # so are these
        self._taken: Subscription
        registry.on_lost.append(self._on_executor_lost)
        registry.on_found.append(self._on_executor_found)

    @property
    def num_live(self) -> int:
        return len(self._live)

    def places(self) -> dict[tuple[str, str], None]:
        """Executors, by id and epoch, that have live requests, as far as is known."""
        there = (each.place for each in self._live.values() if not each.is_lost)
        return {place: None for place in there if place is not None}

    async def start(self) -> None:
        """Listen for tokens and for requests that move, and answer executors that tell what they hold."""
        self._taken = await self._bus.subscribe(subjects.TAKEN, Taken, self._on_taken)
        await self._bus.subscribe(subjects.tokens(self._gateway_id), StepTokens, self._on_step_tokens)
        await self._bus.serve(subjects.alive(self._gateway_id), HeldRequests, self._on_held)

    async def run(self) -> None:
        """Resume requests whose executor is gone, in the order in which they lost it. Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tend())
            tasks.create_task(self._try_suspects())
            while True:
                check_cancelled()
                generation = await self._to_resume.get()
                await asyncio.sleep(0)  # streams that were not lost go on
                if generation.finish_reason is not None:
                    continue
                if generation.sampling.adapter:  # who has it may be away while others are there
                    tasks.create_task(self._resume(generation))
                else:
                    await self._resume(generation)

    async def submit(
        self, request: CompletionRequest, sender: Sender, share: Share = UNLIMITED, num_together: int = 1
    ) -> G:
        """It waits or runs from here on. The caller must ``close`` it; ``share`` is ended here. ``num_together``: with
        the first of several choices how many there are, 0 with the others. Raises Refusal, RequestError,
        NoExecutorError and BusError."""
        now_s = self._clock.monotonic_s()
        arrival_s = self._clock.unix_s()
        generation = self.generation_type(uuid.uuid4().hex, request, sender, arrival_s, now_s, share, num_together)
        generation.span = self._begin_span(generation)
        try:
            await self._start(generation)
        except BaseException:
            self._forget(generation)
            generation.end(FinishReason.ERROR)
            self._end_span(generation)
            await self._drop(generation)
            raise
        self._metrics.prompt_tokens.add(len(request.prompt_token_ids))
        logger.debug("request sent", extra=generation.log_ids)
        return generation

    def _begin_span(self, generation: G) -> Span:
        """From its arrival to its end, with the names that OpenTelemetry has for generation."""
        parent, request = generation.sender.span.traceparent, generation.request
        about: Attributes = {
            "gen_ai.operation.name": "chat" if request.endpoint == CHAT else "text_completion",
            "gen_ai.request.model": request.model,
            "gen_ai.usage.input_tokens": len(request.prompt_token_ids),
            "slackwater.request_id": generation.request_id,
            "slackwater.kind": generation.kind.name.lower(),
        }
        return self._tracing.begin_within("generate", generation.arrival_s, parent, about)

    async def close(self, generation: Generation) -> None:
        """The client has its answer or went away; what still waits or runs for it does no more."""
        found = self._live.get(generation.wire_id)
        if found is not None:
            self._end(found, FinishReason.ABORT)
            await self._drop(found)

    async def fail_all(self, why: str) -> None:
        """Every live request ends with this error."""
        failed = list(self._live.values())
        for generation in failed:
            self._end(generation, FinishReason.ERROR, why)
        for generation in failed:
            await self._drop(generation)

    @abstractmethod
    async def _start(self, generation: G) -> None:
        """Send it for the first time. Raises Refusal, NoExecutorError and BusError."""

    @abstractmethod
    async def _send_again(self, generation: G, until_s: float) -> None:
        """From prompt plus tokens so far, under a new id; monotonic ``until_s``: how long it may wait for a taker.
        Raises NoExecutorError and BusError."""

    @abstractmethod
    async def _tend(self) -> None:
        """What else is to be done for live requests, until cancelled."""

    async def _drop(self, generation: G) -> None:
        """Tell whoever may have it that nobody wants it; who does not hear it may be away."""
        if generation.place is not None:
            await self._bus.publish_or_drop(subjects.inbox(generation.place[0]), AbortRequests([generation.wire_id]))

    def _progress(self, generation: G, num_tokens: int, now_s: float) -> None:
        """So many tokens of it arrived; ``last_token_s`` is still that of the ones before."""
        self._metrics.tokens(generation, now_s, num_tokens)

    def _hold(self, generation: G) -> None:
        """It is live from here on."""
        self._live[generation.wire_id] = generation
        self._has_live.set()
        for tell in self.on_live:
            tell()

    def _forget(self, generation: G) -> None:
        """It is live no more."""
        self._live.pop(generation.wire_id, None)

    def _end(self, generation: G, finish_reason: FinishReason, why: str = "") -> None:
        self._forget(generation)
        generation.end(finish_reason, why)
        self._end_span(generation)
        self._metrics.finished(generation, finish_reason)

    def _end_span(self, generation: Generation) -> None:
        assert generation.finish_reason is not None
        about: Attributes = {
            "gen_ai.usage.output_tokens": len(generation.output_token_ids),
            "slackwater.cached_tokens": generation.num_cached_tokens,
            "slackwater.finish_reason": str(generation.finish_reason.value),
        }
        generation.span.say(about)
        generation.span.end(self._clock.unix_s(), generation.error)

    def _lose(self, generation: G) -> None:
        generation.span.event("lost", self._clock.unix_s(), **_where(generation.place))
        generation.lost(self._clock.monotonic_s())
        (self._suspects if generation.is_suspect else self._to_resume).put_nowait(generation)

    def _move(self, generation: G, giver: tuple[str, str], place: tuple[str, str]) -> None:
        """To another executor, with its KV: its stream goes on."""
        generation.span.event("handed over", self._clock.unix_s(), **_where(place))
        generation.move(giver, place)

    async def _on_held(self, held: HeldRequests) -> AbortRequests:
        """A request is known here before it is sent: what is not has ended, and the executor has not heard of it. One
        that is elsewhere has been taken from there, or this executor has taken it when it was lost already."""
        await self._taken.caught_up()  # what the executor has taken is its own by now
        place = (held.executor_id, held.epoch)
        return AbortRequests([request_id for request_id in held.request_ids if not self._is_wanted(request_id, place)])

    def _is_wanted(self, request_id: str, place: tuple[str, str]) -> bool:
        """There, as far as is known."""
        generation = self._live.get(request_id)
        return generation is not None and generation.place in (None, place)

    async def _on_taken(self, taken: Taken) -> None:
        """An executor has taken a request from another one. Tokens of either may come before this or after it."""
        if taken.gateway_id != self._gateway_id:
            return
        generation = self._live.get(taken.request_id)
        giver, taker = ((each.executor_id, each.epoch) for each in (taken.giver, taken.taker))
        if generation is not None and generation.has_heard_of(giver, taker):
            return
        if generation is None or generation.is_lost or generation.place not in (None, giver):
            await self._bus.publish_or_drop(subjects.inbox(taker[0]), AbortRequests([taken.request_id]))
            return
        logger.debug("request moves", extra=generation.log_ids | {"taker": taker[0]})
        self._move(generation, giver, taker)
        if self._registry.incarnation(taker) is None:  # gone meanwhile: nobody else will say so
            self._lose(generation)

    async def _on_step_tokens(self, step: StepTokens) -> None:
        place = (step.executor_id, step.epoch)
        unknown: list[str] = []
        for output in step.outputs:
            generation = self._live.get(output.request_id)
            if generation is None:
                if output.finish_reason is None:
                    unknown.append(output.request_id)
            elif generation.ignores(place, output):
                continue
            else:
                try:
                    self._on_output(generation, place, output)
                except Exception:  # the others of this step go on
                    self._bus.num_failed += 1
                    logger.exception("tokens were not taken", extra=generation.log_ids)
                    self._end(generation, FinishReason.ERROR, "the gateway could not take the tokens of this request")
                    await self._drop(generation)
        if unknown:
            await self._bus.publish_or_drop(subjects.inbox(step.executor_id), AbortRequests(unknown))

    def _on_output(self, generation: G, place: tuple[str, str], output: TokenOutput) -> None:
        if output.finish_reason is FinishReason.ABORT or not generation.continues(place, output):
            generation.num_losses += 1
            self._lose(generation)
        else:
            self._take(generation, place, output)

    def _take(self, generation: G, place: tuple[str, str], output: TokenOutput) -> None:
        now_s = self._clock.monotonic_s()
        if generation.place is None:
            generation.place = place
        elif generation.is_taken_by(place) and self._registry.incarnation(place) is not None:
            logger.debug("request has moved", extra=generation.log_ids | {"taker": place[0]})
            self._move(generation, generation.place, place)  # the news may be lost: who has it is not to be stopped
        if output.token_ids:
            if generation.first_token_s is None:
                generation.span.event("first token", self._clock.unix_s(), **_where(place))
            self._progress(generation, len(output.token_ids), now_s)
            generation.had_tokens(now_s)
        generation.take(output)
        if output.finish_reason is not None:
            self._end(generation, output.finish_reason)

    def _on_executor_lost(self, executor_id: str, epoch: str, has_died: bool) -> None:
        place = (executor_id, epoch)
        for generation in list(self._live.values()):
            if generation.place == place and not generation.is_lost:
                if has_died:
                    generation.crashes[place] = None
                self._lose(generation)

    def _on_executor_found(self, executor_id: str, epoch: str) -> None:
        """It had not died."""
        for generation in self._live.values():
            generation.crashes.pop((executor_id, epoch), None)

    async def _try_suspects(self) -> None:
        """One after the other, each until it has got on: what breaks then is known to be its doing."""
        while True:
            check_cancelled()
            generation = await self._suspects.get()
            if generation.finish_reason is None:
                generation.begin_trial(self._clock.monotonic_s())
                await self._resume(generation)
                await generation.trial_over()

    async def _resume(self, generation: G) -> None:
        try:
            if len(generation.crashes) >= MAX_CRASHES:
                raise NoExecutorError(f"given up: {len(generation.crashes)} executors died while they had it")
            if generation.num_losses >= MAX_LOSSES:
                raise NoExecutorError(f"given up after {generation.num_losses} losses")
            await self._send_again(generation, generation.lost_s + RESUME_WAIT_S)
        except Exception as error:  # the others are to be resumed
            if generation.finish_reason is None:
                self._end(generation, FinishReason.ERROR, str(error))
                unforeseen = None if isinstance(error, SlackwaterError) else error
                logger.error("request lost", exc_info=unforeseen, extra={**generation.log_ids, "why": str(error)})
        if generation.finish_reason is None:
            self._metrics.resumed.add(1)
            num_tokens = len(generation.output_token_ids)
            logger.warning("request resumed", extra={**generation.log_ids, "num_tokens": num_tokens})
        else:  # its client left while it was sent, or nobody takes it
            await self._drop(generation)


def _where(place: tuple[str, str] | None) -> dict[str, str]:
    return {} if place is None else {"slackwater.executor_id": place[0]}
