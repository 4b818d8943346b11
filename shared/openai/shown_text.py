"""What of an output's tokens its client sees: text, and the tokens whose text it is."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.tokens import ChoiceOutput, TokenLogprobs
from shared.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ShownToken:
    """One token with its logprobs. Tokens that make one character together begin where it does."""

    token_id: int
    logprobs: TokenLogprobs
    offset: int  # where its text begins in the output's text, in characters


class ShownText:
    """What a client sees of an output, token by token. Where logprobs are asked for, a token comes with the text that
    its own begins in: not before a split character is whole, nor while its text may still become a stop string. Special
    tokens have no text and do not come at all, nor does what a stop string cuts off."""

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams, shows_calls: bool = False) -> None:
        """``shows_calls`` as of ``Tokenizer.detokenizer``."""
        self._detokenizer = tokenizer.detokenizer(sampling.stop, shows_calls)
        self._has_logprobs = sampling.logprobs is not None
        self._num_shown = 0  # characters
        self._waiting: deque[ShownToken] = deque()

    @property
    def stopped(self) -> bool:
        """A stop string has come: nothing follows."""
        return self._detokenizer.stopped

    def push(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> tuple[str, list[ShownToken]]:
        """The text that can be shown now, and its tokens where ``logprobs``, one for each token, were asked for."""
        if not self._has_logprobs:
            return self._detokenizer.push(token_ids), []
        text = ""
        for token_id, each in zip(token_ids, logprobs, strict=True):
            if token_id not in self._detokenizer.hidden_ids:
                self._waiting.append(ShownToken(token_id, each, self._detokenizer.num_decoded))
                text += self._detokenizer.push([token_id])
        return text, self._shown(text)

    def finish(self) -> tuple[str, list[ShownToken]]:
        """The rest."""
        text = self._detokenizer.finish()
        tokens = self._shown(text)
        if not self.stopped:
            tokens += self._waiting
        self._waiting.clear()
        return text, tokens

    def _shown(self, text: str) -> list[ShownToken]:
        self._num_shown += len(text)
        tokens = []
        while self._waiting and self._waiting[0].offset < self._num_shown:
            tokens.append(self._waiting.popleft())
        return tokens


def visible_tokens(token_ids: list[int], finish_reason: FinishReason | None, sampling: SamplingParams) -> list[int]:
    """Without the stop token that ended the output."""
    if finish_reason is FinishReason.STOP and token_ids and token_ids[-1] in sampling.stop_token_ids:
        return token_ids[:-1]
    return token_ids


def shown_output(
    tokenizer: Tokenizer, output: ChoiceOutput, sampling: SamplingParams, shows_calls: bool = False
) -> tuple[str, list[ShownToken] | None]:
    """The text of a finished output, up to its stop string, with its tokens where logprobs were asked for."""
    visible = visible_tokens(output.token_ids, output.finish_reason, sampling)
    shown = ShownText(tokenizer, sampling, shows_calls)
    text, tokens = shown.push(visible, (output.logprobs or [])[: len(visible)])
    rest, last_tokens = shown.finish()
    return text + rest, None if sampling.logprobs is None else tokens + last_tokens
