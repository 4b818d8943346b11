"""Completions as OpenAI's clients see them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from shared.openai.tools.definitions import MessageToolCall

Finish = Annotated[str, Meta(extra_json_schema={"enum": ["stop", "length"]})]
ChatFinish = Annotated[str, Meta(extra_json_schema={"enum": ["stop", "length", "tool_calls"]})]
ServedTier = Annotated[str, Meta(extra_json_schema={"enum": ["default", "flex"]})]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """``cached_tokens`` came from the prefix cache."""

    cached_tokens: int


class CompletionUsage(msgspec.Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

    @classmethod
    def of(cls, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> CompletionUsage:
        """``cached_tokens``: of the prompt."""
        total = prompt_tokens + completion_tokens
        return cls(prompt_tokens, completion_tokens, total, PromptTokensDetails(cached_tokens))


class AssistantMessage(msgspec.Struct, frozen=True):
    """The answer in a conversation; without content where it only calls tools."""

    content: str | None
    tool_calls: list[MessageToolCall] | UnsetType = UNSET
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer."""

    index: int
    message: AssistantMessage
    finish_reason: ChatFinish
    logprobs: dict[str, Any] | None


class TextChoice(msgspec.Struct, frozen=True):
    """One continuation."""

    index: int
    text: str
    finish_reason: Finish
    logprobs: dict[str, Any] | None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """What both have. ``created`` is in unix seconds; the lines of batches do not tell a tier."""

    id: str
    created: int
    model: str
    usage: CompletionUsage
    service_tier: ServedTier | UnsetType = UNSET


class ChatCompletion(Completion, frozen=True, kw_only=True):
    """The whole answer of a chat completion that is not streamed. ``created`` is in unix seconds."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class TextCompletion(Completion, frozen=True, kw_only=True):
    """The whole answer of a text completion that is not streamed. ``created`` is in unix seconds."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]
