"""Log probabilities of an output's tokens, as requests ask for them and answers show them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.openai.errors import RequestError
from shared.openai.shown_text import ShownToken
from shared.text.tokenizer import Tokenizer

MAX_CHAT_TOP_LOGPROBS = 20
MAX_TEXT_TOP_LOGPROBS = 5


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

    def body(self, tokens: Sequence[ShownToken] | None) -> dict[str, Any] | None:
        """None where none were asked for."""
        if tokens is None:
            return None
        return self._chat(tokens) if self.is_chat else self._text(tokens)

    def _chat(self, tokens: Sequence[ShownToken]) -> dict[str, Any]:
        content = []
        for token in tokens:
            found = token.logprobs
            top = zip(found.top_token_ids, found.top_logprobs, strict=True)
            entry = self._entry(token.token_id, found.logprob)
            content.append(entry | {"top_logprobs": [self._entry(*each) for each in top]})
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self.tokenizer.token_bytes(token_id)
        return {"token": data.decode(errors="backslashreplace"), "logprob": logprob, "bytes": list(data)}

    def _text(self, tokens: Sequence[ShownToken]) -> dict[str, Any]:
        tops = []
        for token in tokens:
            found = token.logprobs
            top = dict(zip(map(self._name, found.top_token_ids), found.top_logprobs, strict=True))
            tops.append(top | {self._name(token.token_id): found.logprob})
        return {
            "tokens": [self._name(token.token_id) for token in tokens],
            "token_logprobs": [token.logprobs.logprob for token in tokens],
            "top_logprobs": tops,
            "text_offset": [token.offset for token in tokens],
        }

    def _name(self, token_id: int) -> str:
        data = self.tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:  # a part of a character
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
