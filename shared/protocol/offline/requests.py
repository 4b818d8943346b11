"""Requests of batches and their results, as the streams keep them."""

import msgspec

from shared.bounds import Count
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason
from shared.protocol.tokens import ChoiceOutput, TokenLogprobs


class OfflineRequest(msgspec.Struct, frozen=True):
    """One line of a batch, stored in REQUESTS_STREAM until its result is durable."""

    request: GenerateRequest
    batch_id: str
    line: Count  # from 1, as in the input file
    custom_id: str
    model: str


class OfflineResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The one result of an offline request, stored in RESULTS_STREAM. Its output is that of the first choice."""

    request_id: str
    output_token_ids: list[int]
    finish_reason: FinishReason
    num_cached_tokens: Count = 0
    error: str = ""
    logprobs: list[TokenLogprobs] | None = None  # one for each token, where they were asked for
    other_choices: list[ChoiceOutput] = []
    prompt_token_ids: bytes = b""  # packed, where an answer shows something of the prompt
    prompt_scores: bytes | None = None  # where they were asked for
    embedding: bytes | None = None  # where it was asked for

    @property
    def choices(self) -> list[ChoiceOutput]:
        """All of them, in their order."""
        return [ChoiceOutput(self.output_token_ids, self.finish_reason, self.logprobs), *self.other_choices]


class OfflineFailure(msgspec.Struct, frozen=True):
    """A failed run of an offline request that may be tried again, stored in RESULTS_STREAM beside the results."""

    request_id: str
    reason: str


class OfflineLength(msgspec.Struct, frozen=True, array_like=True):
    """One offline request, as a workload knows it."""

    num_prompt_tokens: Count
    max_tokens: Count


class OfflineSample(msgspec.Struct, frozen=True):
    """The offline-queue's answer on OFFLINE_SAMPLE: some of its requests without a result, evenly spread by age."""

    lengths: list[OfflineLength]
