"""Completions as OpenAI's clients see them, and the whole answer of one that is not streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from shared.openai.completions.requests import CHAT
from shared.openai.reasoning import Reasoning, part
from shared.openai.shown_prompt import Echo, ShownPrompt, joined
from shared.openai.shown_text import LogprobsShape, shown_output
from shared.openai.tools.calls import ToolUse, split_calls
from shared.openai.tools.definitions import MessageToolCall, finish_reason_of, message_call
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.tokens import ChoiceOutput

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
    """The answer in a conversation; without content where it only calls tools, or has not come to its end of thinking.
    ``reasoning``: of a model that marks what it thinks before."""

    content: str | None
    reasoning: str | UnsetType = UNSET
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
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET


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
    prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET


class TextCompletion(Completion, frozen=True, kw_only=True):
    """The whole answer of a text completion that is not streamed. ``created`` is in unix seconds."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What an answer, or each chunk of it, tells first. ``created``: unix seconds; ``service_tier``: None is untold."""

    endpoint: str
    request_id: str
    created: int
    model: str
    service_tier: str | None = None

    def fields(self) -> dict[str, Any]:
        """As a client sees them."""
        id = f"{'chatcmpl' if self.endpoint == CHAT else 'cmpl'}-{self.request_id}"
        tier = {} if self.service_tier is None else {"service_tier": self.service_tier}
        return {"id": id, "created": self.created, "model": self.model} | tier


class Choice(msgspec.Struct, frozen=True):
    """One answer, whole."""

    text: str
    finish_reason: FinishReason
    logprobs: dict[str, Any] | None = None  # where they were asked for
    prompt_logprobs: list[dict[str, Any] | None] | None = None  # where they were asked for

    @classmethod
    def of(
        cls,
        output: ChoiceOutput,
        sampling: SamplingParams,
        shape: LogprobsShape,
        shows_calls: bool,
        prompt: ShownPrompt,
    ) -> Choice:
        """``shows_calls`` as of ``Tokenizer.detokenizer``."""
        text, tokens = shown_output(shape.tokenizer, output, sampling, shows_calls)
        listed = prompt.listed(shape.tokenizer, sampling)
        if not sampling.echo:
            return cls(text, output.finish_reason, shape.body(tokens), listed)
        echo = Echo.of(shape.tokenizer, prompt.token_ids)
        logprobs = echo.before(shape).body(tokens)
        if logprobs is not None:
            logprobs = joined(prompt.logprobs(echo, sampling), logprobs)
        return cls(echo.text + text, output.finish_reason, logprobs, listed)


def completion_body(
    head: AnswerHead,
    choices: Sequence[Choice],
    usage: CompletionUsage,
    tools: ToolUse | None = None,
    reasoning: Reasoning | None = None,
) -> Completion:
    """``tools``: whose calls are to be found in the texts; ``reasoning``: that they may have before their content."""
    if head.endpoint == CHAT:
        chats = [_chat_choice(choice, index, head.request_id, tools, reasoning) for index, choice in enumerate(choices)]
        listed = next((UNSET if each.prompt_logprobs is None else each.prompt_logprobs for each in choices), UNSET)
        return ChatCompletion(choices=chats, usage=usage, prompt_logprobs=listed, **head.fields())
    texts = [_text_choice(choice, index) for index, choice in enumerate(choices)]
    return TextCompletion(choices=texts, usage=usage, **head.fields())


def _text_choice(choice: Choice, index: int) -> TextChoice:
    listed = UNSET if choice.prompt_logprobs is None else choice.prompt_logprobs
    return TextChoice(index, choice.text, choice.finish_reason.value, choice.logprobs, listed)


def _chat_choice(
    choice: Choice, index: int, request_id: str, tools: ToolUse | None, reasoning: Reasoning | None
) -> ChatChoice:
    thought, text = part(choice.text, reasoning)
    shown = UNSET if thought is None else thought
    content, calls = split_calls(text, tools)
    finish_reason = finish_reason_of(choice.finish_reason, len(calls), tools)
    message = AssistantMessage(None if thought and not content else content, shown)
    if tools is not None and calls:
        called = [message_call(call, tools.format, request_id, index, number) for number, call in enumerate(calls)]
        message = AssistantMessage(content or None, shown, called)
    return ChatChoice(index, message, finish_reason, choice.logprobs)
