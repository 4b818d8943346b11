"""Completions as OpenAI's clients see them: what ``responses`` writes, for those who read its description."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from shared.openai.tools.definitions import MessageToolCall

Finish = Literal["stop", "length"]
ChatFinish = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """``cached_tokens`` came from the prefix cache."""

    cached_tokens: int


class CompletionUsage(msgspec.Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class AssistantMessage(msgspec.Struct, frozen=True):
    """The answer in a conversation; without content where it only calls tools."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[MessageToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer."""

    index: int
    message: AssistantMessage
    finish_reason: ChatFinish
    logprobs: dict[str, Any] | None


class ChatCompletion(msgspec.Struct, frozen=True):
    """The whole answer of a chat completion that is not streamed. ``created`` is in unix seconds."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    service_tier: Literal["default", "flex"]


class TextChoice(msgspec.Struct, frozen=True):
    """One continuation."""

    index: int
    text: str
    finish_reason: Finish
    logprobs: dict[str, Any] | None


class TextCompletion(msgspec.Struct, frozen=True):
    """The whole answer of a text completion that is not streamed. ``created`` is in unix seconds."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: CompletionUsage
    service_tier: Literal["default", "flex"]
