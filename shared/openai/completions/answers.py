"""The whole answer of a completion that is not streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shared.openai.completions.objects import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    Completion,
    CompletionUsage,
    TextChoice,
    TextCompletion,
)
from shared.openai.completions.requests import CHAT
from shared.openai.logprobs import LogprobsShape
from shared.openai.shown_text import shown_output
from shared.openai.tools.calls import ToolUse, split_calls
from shared.openai.tools.definitions import finish_reason_of, message_call
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.tokens import ChoiceOutput


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What an answer, or each chunk of it, tells first. ``created`` is in unix seconds; ``service_tier``: that it was
    served in, where that is to be told."""

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

    @classmethod
    def of(cls, output: ChoiceOutput, sampling: SamplingParams, shape: LogprobsShape, shows_calls: bool) -> Choice:
        """``shows_calls`` as of ``Tokenizer.detokenizer``."""
        text, tokens = shown_output(shape.tokenizer, output, sampling, shows_calls)
        return cls(text, output.finish_reason, shape.body(tokens))


def completion_body(
    head: AnswerHead, choices: Sequence[Choice], usage: CompletionUsage, tools: ToolUse | None = None
) -> Completion:
    """``tools``: whose calls are to be found in the texts."""
    if head.endpoint == CHAT:
        chats = [_chat_choice(choice, index, head.request_id, tools) for index, choice in enumerate(choices)]
        return ChatCompletion(choices=chats, usage=usage, **head.fields())
    texts = [TextChoice(i, each.text, each.finish_reason.value, each.logprobs) for i, each in enumerate(choices)]
    return TextCompletion(choices=texts, usage=usage, **head.fields())


def _chat_choice(choice: Choice, index: int, request_id: str, tools: ToolUse | None) -> ChatChoice:
    content, calls = split_calls(choice.text, tools)
    finish_reason = finish_reason_of(choice.finish_reason, len(calls))
    message = AssistantMessage(content)
    if tools is not None and calls:
        called = [message_call(call, tools.format, request_id, index, number) for number, call in enumerate(calls)]
        message = AssistantMessage(content or None, called)
    return ChatChoice(index, message, finish_reason, choice.logprobs)
