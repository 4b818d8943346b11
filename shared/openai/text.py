"""What of a request's tokens its client sees."""

from __future__ import annotations

from shared.openai.shown_text import ShownText, ShownToken
from shared.protocol.messages import TokenLogprobs
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.text.tokenizer import Tokenizer


def visible_tokens(token_ids: list[int], finish_reason: FinishReason | None, sampling: SamplingParams) -> list[int]:
    """Without the stop token that ended the output."""
    if finish_reason is FinishReason.STOP and token_ids and token_ids[-1] in sampling.stop_token_ids:
        return token_ids[:-1]
    return token_ids


def output_text(
    tokenizer: Tokenizer,
    token_ids: list[int],
    finish_reason: FinishReason,
    sampling: SamplingParams,
    shows_calls: bool = False,
) -> str:
    """The text of a finished output, up to its stop string; ``shows_calls`` as of ``Tokenizer.detokenizer``."""
    detokenizer = tokenizer.detokenizer(sampling.stop, shows_calls)
    return detokenizer.push(visible_tokens(token_ids, finish_reason, sampling)) + detokenizer.finish()


def shown_output(
    tokenizer: Tokenizer,
    token_ids: list[int],
    logprobs: list[TokenLogprobs],
    finish_reason: FinishReason,
    sampling: SamplingParams,
    shows_calls: bool = False,
) -> tuple[str, list[ShownToken] | None]:
    """The text of a finished output, with its tokens where logprobs, here one for each, were asked for."""
    if sampling.logprobs is None:
        return output_text(tokenizer, token_ids, finish_reason, sampling, shows_calls), None
    visible = visible_tokens(token_ids, finish_reason, sampling)
    shown = ShownText(tokenizer, sampling, shows_calls)
    text, tokens = shown.push(visible, logprobs[: len(visible)])
    rest, last_tokens = shown.finish()
    return text + rest, tokens + last_tokens
