"""What an executor says: steps, tokens, latency samples; and results of offline requests."""

from __future__ import annotations

import logging

from services.executor.replica import AddressedOutput, Ended
from services.executor.results import ResultStore
from shared.bus import Bus
from shared.errors import BusError
from shared.protocol import subjects
from shared.protocol.messages import (
    BatchShape,
    EndedRequest,
    ExecutorInfo,
    FinishReason,
    LatencySample,
    OfflineResult,
    PlanEntry,
    PlanSource,
    RequestState,
    StepStarted,
    StepTokens,
    TokenOutput,
)
from shared.scheduling.online_order import ClientCounters
from shared.scheduling.pace import Pace
from shared.scheduling.request import Kind

logger = logging.getLogger(__name__)


class StepPublisher:
    """While the bus is away, messages wait in its buffer; beyond it they are dropped and the log says so: steps go
    on, and the next step message carries the whole truth again."""

    def __init__(self, bus: Bus, info: ExecutorInfo, results: ResultStore) -> None:
        self._bus = bus
        self._info = info
        self._results = results

    def remember(self, ended: Ended) -> None:
        """Hand an offline request's result over to be stored; an aborted one has none."""
        sequence = ended.sequence
        if sequence.kind is Kind.OFFLINE and ended.finish_reason is not FinishReason.ABORT:
            self._results.put(
                OfflineResult(
                    sequence.request_id,
                    sequence.output_token_ids,
                    ended.finish_reason,
                    sequence.num_cached_tokens,
                    ended.error,
                )
            )

    async def tokens(self, step: int, outputs: list[AddressedOutput]) -> None:
        """One message per gateway; offline requests have none."""
        by_gateway: dict[str, list[TokenOutput]] = {}
        for gateway_id, output in outputs:
            if gateway_id:
                by_gateway.setdefault(gateway_id, []).append(output)
        for gateway_id, theirs in by_gateway.items():
            message = StepTokens(self._info.executor_id, self._info.epoch, step, theirs)
            await self._publish(subjects.tokens(gateway_id), message)

    async def sample(self, step: int, shape: BatchShape, latency_ms: float) -> None:
        """How long a step took."""
        message = LatencySample(self._info.executor_id, self._info.profile_key, step, shape, latency_ms)
        await self._publish(subjects.sample(self._info.executor_id), message)

    async def step_started(self, message: StepStarted) -> None:
        """Q_send."""
        await self._publish(subjects.step(self._info.executor_id), message)

    def step_message(
        self,
        step: int,
        source: PlanSource,
        idle: bool,
        entries: list[PlanEntry],
        states: list[RequestState],
        ended: list[EndedRequest],
        num_free_blocks: int,
        client_counters: ClientCounters | None,
        in_flight: list[list[PlanEntry]],
        pace: Pace,
    ) -> StepStarted:
        """The message about a step of this executor."""
        return StepStarted(
            self._info.executor_id,
            self._info.epoch,
            step,
            source,
            idle,
            entries,
            states,
            ended,
            num_free_blocks,
            client_counters,
            in_flight,
            pace,
        )

    async def _publish(self, subject: str, message: object) -> None:
        try:
            await self._bus.publish(subject, message)
        except BusError as error:
            logger.warning("message dropped", extra={"subject": subject, "why": str(error)})
