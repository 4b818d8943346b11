"""What of a prompt its client sees in an answer: its text before the output (echo), and how probable its tokens are."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shared.openai.errors import RequestError
from shared.openai.shown_text import LogprobsShape, token_name
from shared.protocol.prompt_scores import PromptScore, unpack_scores
from shared.protocol.sampling import SamplingParams
from shared.text.tokenizer import Tokenizer

Logprobs = dict[str, Any]  # of a text completion


MAX_SCORES = 400_000  # log probabilities of one prompt, 3.2 MB: they are a part of one message


def check_scores(prompt_logprobs: int | None, stream: bool) -> None:
    """Raises RequestError."""
    if prompt_logprobs is not None and stream:
        raise RequestError(
            "prompt_logprobs do not come in a stream; leave stream out, or ask for echo and logprobs",
            "prompt_logprobs",
            "unsupported_value",
        )


def asked_of_prompt(prompt_logprobs: int | None, echoed: int | None, num_tokens: int) -> int | None:
    """How many of the most probable tokens are wanted beside each of the prompt's: as vLLM has it, ``prompt_logprobs``,
    and where they are not given the ``logprobs`` that are ``echoed``. None: no scores. Raises RequestError."""
    num_top = echoed if prompt_logprobs is None else prompt_logprobs
    if num_top is not None and num_tokens * (1 + num_top) > MAX_SCORES:
        raise RequestError(
            f"{num_tokens} tokens in the prompt with {1 + num_top} log probabilities each are more than {MAX_SCORES}; "
            "ask for fewer",
            "logprobs" if prompt_logprobs is None else "prompt_logprobs",
        )
    return num_top


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """``scores``: packed, where the sampling asks for them."""

    token_ids: Sequence[int]
    scores: bytes | None = None

    def listed(self, tokenizer: Tokenizer, sampling: SamplingParams) -> list[dict[str, Any] | None] | None:
        """vLLM's ``prompt_logprobs``: for each token what is known of it and of the most probable ones, by their ids;
        null for the first, which follows nothing. None where they are not to be listed."""
        if not sampling.lists_prompt or self.scores is None:
            return None
        scores = self._unpacked(sampling)
        entries = [_entry(tokenizer, *each) for each in zip(self.token_ids[1:], scores, strict=True)]
        return [None, *entries]

    def _unpacked(self, sampling: SamplingParams) -> Iterator[PromptScore]:
        assert self.scores is not None and sampling.prompt_logprobs is not None
        return unpack_scores(self.scores, sampling.prompt_logprobs)

    def logprobs(self, echo: Echo, sampling: SamplingParams) -> Logprobs:
        """Of the prompt in OpenAI's shape of text completions; null for the first token."""
        tokenizer, num_top = echo.tokenizer, sampling.logprobs or 0
        token_logprobs: list[float | None] = [None]
        tops: list[dict[str, float] | None] = [None]
        for token_id, score in zip(self.token_ids[1:], self._unpacked(sampling), strict=True):
            top = zip(score.top_token_ids[:num_top], score.top_logprobs, strict=False)
            token_logprobs.append(score.logprob)
            named = {token_name(tokenizer, id): logprob for id, logprob in top}
            tops.append(named | {token_name(tokenizer, token_id): score.logprob})
        names = [token_name(tokenizer, token_id) for token_id in self.token_ids]
        return {"tokens": names, "token_logprobs": token_logprobs, "top_logprobs": tops, "text_offset": echo.offsets}


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as its tokens read, special ones by their names, without what the tokenizer puts before every text
    (BOS, a blank). ``offsets``: in characters, where each token begins; those that make one character together begin
    where it does."""

    tokenizer: Tokenizer
    text: str
    offsets: list[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, token_ids: Sequence[int]) -> Echo:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        num_before = tokenizer.num_before_text(token_ids)
        parts, offsets, num_shown = [], [0] * num_before, 0
        for place, token_id in enumerate(token_ids[num_before:]):
            offsets.append(num_shown)
            parts.append(decoder.decode(tokenizer.token_bytes(token_id) if place else tokenizer.first_bytes(token_id)))
            num_shown += len(parts[-1])
        return cls(tokenizer, "".join(parts) + decoder.decode(b"", final=True), offsets)

    def before(self, shape: LogprobsShape) -> LogprobsShape:
        """Of an output that follows."""
        return replace(shape, offset=len(self.text))


def joined(first: Logprobs, then: Logprobs | None) -> Logprobs:
    """Of two texts, one behind the other."""
    return first if then is None else {name: values + then[name] for name, values in first.items()}


def _entry(tokenizer: Tokenizer, token_id: int, score: PromptScore) -> dict[str, Any]:
    """The token itself first, then the most probable ones, which it may be among."""
    known = {token_id: (score.logprob, score.rank)}
    tops = zip(score.top_token_ids, score.top_logprobs, strict=True)
    known |= {id: (logprob, rank) for rank, (id, logprob) in enumerate(tops, 1) if id != token_id}
    return {
        str(id): {"logprob": logprob, "rank": rank, "decoded_token": token_name(tokenizer, id)}
        for id, (logprob, rank) in known.items()
    }
