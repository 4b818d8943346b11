"""What of a request's tokens its client sees."""

from __future__ import annotations

from shared.protocol.messages import FinishReason, SamplingParams
from shared.tokenizer import Tokenizer


def visible_tokens(token_ids: list[int], finish_reason: FinishReason | None, sampling: SamplingParams) -> list[int]:
    """Without the stop token that ended the output."""
    if finish_reason is FinishReason.STOP and token_ids and token_ids[-1] in sampling.stop_token_ids:
        return token_ids[:-1]
    return token_ids


def output_text(
    tokenizer: Tokenizer, token_ids: list[int], finish_reason: FinishReason, sampling: SamplingParams
) -> str:
    """The text of a finished output, up to its stop string."""
    detokenizer = tokenizer.detokenizer(sampling.stop)
    return detokenizer.push(visible_tokens(token_ids, finish_reason, sampling)) + detokenizer.finish()
