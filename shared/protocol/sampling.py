"""How the tokens of a request are chosen, and why it ends. Part of the messages between services."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from itertools import chain
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.bounds import Amount, Count, Finite, Positive, Share, TokenId, Weight
from shared.scheduling.kv.block_hash import KVScope, kv_scope

SEED_BITS = 63
NUM_FOLLOWED = 8  # tokens: one with text tells whether a blank follows, and a character that is begun has three at most
CHOICE_STRIDE = 0x1E3779B97F4A7C15  # of a Weyl sequence: the seeds of nearby requests do not meet


class FinishReason(enum.StrEnum):
    """Why a request ended."""

    STOP = "stop"  # EOS, a stop token or a stop string
    LENGTH = "length"  # max_tokens, or the model's context is full
    ABORT = "abort"  # the client went away or the batch was cancelled
    ERROR = "error"  # the executor could not go on with it


ENDS_WELL = (FinishReason.STOP, FinishReason.LENGTH)

TokenWord = Annotated[tuple[TokenId, ...], Meta(min_length=1)]


class EmbeddingShape(msgspec.Struct, frozen=True, array_like=True):
    """How a client is shown an embedding."""

    is_base64: bool = False  # else a list of numbers
    dimensions: Positive | None = None  # so many of its first ones, normalized anew; None: all


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tokens are chosen. ``seed`` is always set (the gateway or the offline-queue draws one where absent)."""

    max_tokens: Count  # 0: the prompt is computed, and nothing generated
    temperature: Amount = 1.0  # 0 is greedy
    top_p: Share = 1.0
    top_k: Count = 0  # 0 is off
    seed: Annotated[int, Meta(ge=0, le=2**SEED_BITS - 1)] = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[TokenId, ...] = ()
    ignore_eos: bool = False
    min_p: Share = 0.0  # of the most probable token's probability; 0 is off
    presence_penalty: Finite = 0.0  # OpenAI's two, over the output so far
    frequency_penalty: Finite = 0.0
    repetition_penalty: Weight = 1.0  # over prompt and output so far (Keskar et al., CTRL, 2019); 1 is off
    logit_bias: tuple[tuple[TokenId, Finite], ...] = ()  # (token id, what is added to its logit), by token id
    min_tokens: Count = 0  # before so many of the output neither EOS nor a stop token comes, nor a stop string counts
    allowed_token_ids: tuple[TokenId, ...] = ()  # without any, all are
    bad_words: tuple[TokenWord, ...] = ()  # tokens that the output may not have one after another
    includes_stop: bool = False  # its client is shown the stop token or stop string that ends it
    shows_special: bool = False  # and the names of special tokens
    grammar: str = ""  # that the output keeps to, as llguidance reads it; empty for any text
    n: Positive = 1  # choices of an offline request, one after another; an online one is one of its own for each
    logprobs: Count | None = None  # with each token its own, and those of so many most probable ones; None: without
    prompt_logprobs: Count | None = None  # the same for the prompt's tokens from the second on: see ``prompt_scores``
    echo: bool = False  # its client is shown the prompt before the output
    lists_prompt: bool = False  # its client is shown vLLM's prompt_logprobs
    embedding: EmbeddingShape | None = (
        None  # of the prompt is asked for; with no token, so that it ends with its prompt
    )
    adapter: str = ""  # the LoRA adapter that it runs with, by its name; empty: the model as it is
    follows: tuple[TokenId, ...] = ()  # the prompt's last tokens, where the output's text goes on with the prompt's
    kv_owner: str = ""  # whose requests alone find its KV; empty: all that have its prompt

    @property
    def kv_scope(self) -> KVScope:
        """Of its prompt."""
        return kv_scope(self.prompt_logprobs, self.adapter, self.kv_owner)

    @property
    def ends_at_limit(self) -> bool:
        """Nothing but ``max_tokens`` ends it, within the model's context."""
        return self.ignore_eos and not (self.stop or self.stop_token_ids or self.grammar)

    @property
    def shows_prompt(self) -> bool:
        """An answer has something of the prompt in it."""
        return self.echo or self.prompt_logprobs is not None

    @property
    def adjusts_logits(self) -> bool:
        """Whether logits are changed before the temperature divides them."""
        has_penalties = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        return bool(has_penalties or self.logit_bias or self.forbids_tokens)

    @property
    def forbids_tokens(self) -> bool:
        """Whether there are tokens that may not come, now or at some places."""
        return bool(self.grammar or self.allowed_token_ids or self.bad_words or self.delays_end)

    @property
    def delays_end(self) -> bool:
        """Whether a token would end it that may not come from the beginning."""
        return self.min_tokens > 0 and bool(self.stop_token_ids or not self.ignore_eos)

    @property
    def largest_token_id(self) -> int:
        """Of all that are named here; 0 where none is."""
        biased = (token_id for token_id, _ in self.logit_bias)
        return max(chain(self.stop_token_ids, self.allowed_token_ids, biased, *self.bad_words), default=0)

    def after(self, prompt: Sequence[int]) -> SamplingParams:
        """The same of an output whose text goes on with that of the prompt's tokens."""
        return msgspec.structs.replace(self, follows=tuple(prompt[-NUM_FOLLOWED:]))

    def seed_of_choice(self, index: int) -> int:
        """Of the choice so many after the one that this is the sampling of."""
        return (self.seed + index * CHOICE_STRIDE) % (1 << SEED_BITS)
