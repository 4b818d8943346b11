"""What executors generate, as gateways and results have it. All but ``StepTokens`` are arrays on the wire.

Tokens are not bounded here: one that no tokenizer has ends its own request, and loses nobody else's of the step."""

import msgspec

from shared.bounds import Count
from shared.protocol.sampling import FinishReason


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """How probable the model itself, before biases, penalties, temperature and all that cuts, found one output token
    and the most probable ones: natural logarithms, the greatest first."""

    logprob: float
    top_token_ids: list[int]
    top_logprobs: list[float]


class TokenOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one request gained in one step, which has hundreds."""

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    num_cached_tokens: Count = 0  # prompt tokens that came from the prefix cache
    error: str = ""  # why, with FinishReason.ERROR
    num_output_tokens: Count | None = None  # of the request so far, these included: shows whether a message was lost
    logprobs: list[TokenLogprobs] | None = None  # one for each of token_ids, where they were asked for
    prompt_scores: bytes | None = None  # of the whole prompt, with its first tokens, where they were asked for
    embedding: bytes | None = None  # of the prompt, with its end, where it was asked for


class StepTokens(msgspec.Struct, frozen=True):
    """All tokens of one step for one gateway."""

    executor_id: str
    epoch: str
    step: Count
    outputs: list[TokenOutput]


class ChoiceOutput(msgspec.Struct, frozen=True, array_like=True):
    """One of the choices that a request asks for, as it ended."""

    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[TokenLogprobs] | None = None  # one for each token, where they were asked for
