"""What an executor says: steps, tokens, latency samples; and results of offline requests."""

from services.executor.request_spans import RequestSpans
from services.executor.results import ResultStore
from shared.bus import Bus
from shared.latency.features import BatchFeatures
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.offline.requests import OfflineFailure, OfflineResult
from shared.protocol.profiling.measurements import LatencySample
from shared.protocol.sampling import FinishReason
from shared.protocol.steps import StepStarted
from shared.protocol.tokens import StepTokens, TokenOutput
from shared.replica.outputs import AddressedOutput, Ended
from shared.scheduling.packed_prompt import pack_tokens
from shared.scheduling.request import Kind

AROUND_SCORES_BYTES = 4096  # of a message that tells of them


class StepPublisher:
    """While the bus is away, messages wait in its buffer; beyond it they are dropped and the log says so: steps go
    on, and the next step message carries the whole truth again."""

    def __init__(self, bus: Bus, info: ExecutorInfo, results: ResultStore, spans: RequestSpans) -> None:
        self._bus = bus
        self._info = info
        self._results = results
        self._spans = spans

    def remember(self, ended: Ended) -> None:
        """Have stored what came of a batch's request that was not aborted; of others their gateway has every token."""
        sequence = ended.sequence
        if sequence.kind is not Kind.OFFLINE or sequence.gateway_id or ended.finish_reason is FinishReason.ABORT:
            return
        if ended.may_be_retried:
            self._results.put_failure(OfflineFailure(sequence.request_id, ended.error))
            return
        last = sequence.choice(ended.finish_reason)
        first, *others = [last] if ended.finish_reason is FinishReason.ERROR else [*sequence.ended_choices, last]
        result = OfflineResult(
            sequence.request_id,
            first.token_ids,
            first.finish_reason,
            sequence.num_cached_tokens,
            ended.error,
            first.logprobs,
            others,
            pack_tokens(sequence.token_ids[: sequence.num_prompt_tokens]) if sequence.sampling.shows_prompt else b"",
            sequence.prompt_scores,
            sequence.embedding,
        )
        self._results.put(result)

    async def tokens(self, step: int, outputs: list[AddressedOutput]) -> None:
        """One message per gateway; offline requests have none. Outputs with scores or embeddings have messages of their
        own: together they may be more than a message holds."""
        self._spans.tokens(outputs)
        by_gateway: dict[str, list[TokenOutput]] = {}
        for gateway_id, output in outputs:
            if gateway_id and (output.prompt_scores or output.embedding):
                await self._tell(gateway_id, step, [self._sendable(output)])
            elif gateway_id:
                by_gateway.setdefault(gateway_id, []).append(output)
        for gateway_id, theirs in by_gateway.items():
            await self._tell(gateway_id, step, theirs)

    async def _tell(self, gateway_id: str, step: int, outputs: list[TokenOutput]) -> None:
        message = StepTokens(self._info.executor_id, self._info.epoch, step, outputs)
        await self._bus.publish_or_drop(subjects.tokens(gateway_id), message)

    def _sendable(self, output: TokenOutput) -> TokenOutput:
        """Its end with an error where the scores of its prompt are more than a message holds: computed anew they would
        be as many."""
        num_bytes = len(output.prompt_scores or b"")
        if num_bytes <= self._bus.max_payload - AROUND_SCORES_BYTES:
            return output
        why = f"the scores of its prompt have {num_bytes} bytes, which is more than the bus takes in one message"
        return TokenOutput(output.request_id, [], FinishReason.ERROR, error=why)

    async def sample(self, step: int, shape: BatchFeatures, latency_ms: float) -> None:
        """How long a step took."""
        message = LatencySample(self._info.executor_id, self._info.profile_key, step, shape, latency_ms)
        await self._bus.publish_or_drop(subjects.sample(self._info.executor_id), message)

    async def step_started(self, message: StepStarted) -> None:
        """Q_send."""
        self._spans.step_started(message)
        await self._bus.publish_or_drop(subjects.step(self._info.executor_id), message)
