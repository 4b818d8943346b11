"""What of an output's tokens its client sees: text, the tokens whose text it is, and their log probabilities."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shared.openai.errors import RequestError
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.tokens import ChoiceOutput, TokenLogprobs
from shared.text.tokenizer import Tokenizer

MAX_CHAT_TOP_LOGPROBS = 20
MAX_TEXT_TOP_LOGPROBS = 5


@dataclass(frozen=True, slots=True)
class ShownToken:
    """One token with its logprobs. Tokens that make one character together begin where it does."""

    token_id: int
    logprobs: TokenLogprobs
    offset: int  # where its text begins in the output's text, in characters
    is_first: bool = False  # of a text of its own: SentencePiece's blank before it is not shown


class ShownText:
    """What a client sees of an output, token by token. Where logprobs are asked for, a token comes with the text that
    its own begins in: not before a split character is whole, nor while its text may still become a stop string. Special
    tokens have no text and do not come at all, nor does what a stop string cuts off. Behind a prompt that is echoed
    they come, and so does the token that ends the output: who scores prompts counts on each token being there."""

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams, shows_calls: bool = False) -> None:
        """``shows_calls`` as of ``Tokenizer.detokenizer``."""
        self._detokenizer = tokenizer.detokenizer(
            sampling.stop,
            shows_calls,
            sampling.shows_special,
            sampling.min_tokens,
            sampling.includes_stop,
            sampling.follows,
        )
        self._sampling = sampling
        self._eos_token_ids = tokenizer.eos_token_ids
        self._num_shown = 0  # characters
        self._is_first = not sampling.follows  # the token that comes next, of a text of its own
        self._waiting: deque[ShownToken] = deque()

    @property
    def stopped(self) -> bool:
        """A stop string has come: nothing follows."""
        return self._detokenizer.stopped

    def step(
        self, token_ids: list[int], logprobs: list[TokenLogprobs], finish_reason: FinishReason | None
    ) -> tuple[str, list[ShownToken]]:
        """As ``push``, without the text of the token that ended the output unless that is to be shown; all that is left
        with the finish reason."""
        is_ended = finish_reason is FinishReason.STOP and bool(token_ids) and self._ends(token_ids[-1])
        before = token_ids[:-1] if is_ended else token_ids
        text, tokens = self.push(before, logprobs[: len(before)])
        if finish_reason is None:
            return text, tokens
        if is_ended and self._sampling.echo and logprobs:
            self._waiting.append(ShownToken(token_ids[-1], logprobs[-1], self._detokenizer.num_decoded))
        rest, last_tokens = self.finish()
        return text + rest, tokens + last_tokens

    def push(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> tuple[str, list[ShownToken]]:
        """The text that can be shown now, and its tokens where ``logprobs``, one for each token, were asked for."""
        if self._sampling.logprobs is None:
            return self._detokenizer.push(token_ids), []
        text = ""
        for token_id, each in zip(token_ids, logprobs, strict=True):
            if self._sampling.echo or token_id not in self._detokenizer.hidden_ids:
                self._waiting.append(ShownToken(token_id, each, self._detokenizer.num_decoded, self._is_first))
                self._is_first = False
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

    def _ends(self, token_id: int) -> bool:
        sampling = self._sampling
        if sampling.includes_stop:
            return False
        return token_id in sampling.stop_token_ids or (not sampling.ignore_eos and token_id in self._eos_token_ids)

    def _shown(self, text: str) -> list[ShownToken]:
        self._num_shown += len(text)
        tokens = []
        while self._waiting and self._waiting[0].offset < self._num_shown:
            tokens.append(self._waiting.popleft())
        return tokens


def shown_output(
    tokenizer: Tokenizer, output: ChoiceOutput, sampling: SamplingParams, shows_calls: bool = False
) -> tuple[str, list[ShownToken] | None]:
    """The text of a finished output, up to its stop string, with its tokens where logprobs were asked for."""
    shown = ShownText(tokenizer, sampling, shows_calls)
    text, tokens = shown.step(output.token_ids, output.logprobs or [], output.finish_reason)
    return text, None if sampling.logprobs is None else tokens


def asked_of_chat(logprobs: bool | None, top_logprobs: int | None) -> int | None:
    """How many of the most probable tokens are wanted beside each token; None: no logprobs. Raises RequestError."""
    if logprobs:
        return top_logprobs or 0
    if top_logprobs:
        raise RequestError("top_logprobs is only allowed when logprobs is true", "top_logprobs")
    return None


@dataclass(frozen=True, slots=True)
class LogprobsShape:
    """The ``logprobs`` of a choice or of a chunk of it: OpenAI's chat shape, or the older one of text completions."""

    tokenizer: Tokenizer
    is_chat: bool
    offset: int = 0  # characters of the text before the output

    def body(self, tokens: Sequence[ShownToken] | None) -> dict[str, Any] | None:
        """None where none were asked for."""
        if tokens is None:
            return None
        return self._chat(tokens) if self.is_chat else self._text(tokens)

    def _chat(self, tokens: Sequence[ShownToken]) -> dict[str, Any]:
        usual = _Names(self.tokenizer.token_bytes)
        content = []
        for token in tokens:
            names, found = _Names(self.tokenizer.first_bytes) if token.is_first else usual, token.logprobs
            top = zip(found.top_token_ids, found.top_logprobs, strict=True)
            entry = names.entry(token.token_id, found.logprob)
            content.append(entry | {"top_logprobs": [names.entry(*each) for each in top]})
        return {"content": content, "refusal": None}

    def _text(self, tokens: Sequence[ShownToken]) -> dict[str, Any]:
        tops = []
        for token in tokens:
            found = token.logprobs
            names = (token_name(self.tokenizer, token_id) for token_id in found.top_token_ids)
            top = dict(zip(names, found.top_logprobs, strict=True))
            tops.append(top | {token_name(self.tokenizer, token.token_id): found.logprob})
        return {
            "tokens": [token_name(self.tokenizer, token.token_id) for token in tokens],
            "token_logprobs": [token.logprobs.logprob for token in tokens],
            "top_logprobs": tops,
            "text_offset": [self.offset + token.offset for token in tokens],
        }


class _Names:
    """What a chat calls tokens, of which the same ones come again and again."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._known: dict[int, tuple[str, list[int]]] = {}

    def entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        if (known := self._known.get(token_id)) is None:
            data = self._bytes_of(token_id)
            self._known[token_id] = known = (data.decode(errors="backslashreplace"), list(data))
        return {"token": known[0], "logprob": logprob, "bytes": known[1]}


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """What text completions call a token: its text, or the bytes of a part of a character."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
