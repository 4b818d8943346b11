"""Tool calls in a chat completion's answer, whole and streamed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

from shared.openai.shown_text import ShownToken
from shared.openai.tools.calls import Piece, ToolCall, ToolCallParser, ToolUse, split_calls
from shared.openai.usage import Usage
from shared.protocol.sampling import FinishReason
from shared.text.tool_format import ToolFormat

TOOL_CALLS = "tool_calls"  # why an answer ended that calls tools
MISTRAL_ID_LENGTH = 9  # its templates take no other


class ChatChunks(Protocol):
    """The server-sent events of a chat completion."""

    def start(self) -> bytes: ...

    def text(self, text: str, tokens: Sequence[ShownToken], index: int) -> bytes: ...

    def tool_call(
        self, number: int, call_id: str, call: ToolCall, tokens: Sequence[ShownToken], index: int
    ) -> bytes: ...

    def finish(self, finish_reason: str, index: int) -> bytes: ...

    def end(self, usage: Usage) -> bytes: ...

    def fail(self, why: str) -> bytes: ...


class ToolCallChunks:
    """Chunks of texts in which calls are found. A call comes in one chunk, as soon as it is whole; tokens with
    logprobs, those of calls too, come with the next chunk of their choice."""

    def __init__(self, chunks: ChatChunks, tools: ToolUse, request_id: str, num_choices: int = 1) -> None:
        self._chunks = chunks
        self._tools = tools
        self._request_id = request_id
        self._choices = [_CallingChoice(ToolCallParser(tools)) for _ in range(num_choices)]

    def start(self) -> bytes:
        return self._chunks.start()

    def text(self, text: str, tokens: Sequence[ShownToken] = (), index: int = 0) -> bytes:
        choice = self._choices[index]
        choice.tokens += tokens
        return self._events(choice.parser.push(text), index)

    def finish(self, finish_reason: FinishReason, index: int = 0) -> bytes:
        choice = self._choices[index]
        rest = self._events(choice.parser.finish(), index)
        if choice.tokens:
            rest += self._chunks.text("", choice.tokens, index)
        return rest + self._chunks.finish(_reason(finish_reason, choice.num_calls), index)

    def end(self, usage: Usage) -> bytes:
        return self._chunks.end(usage)

    def fail(self, why: str) -> bytes:
        return self._chunks.fail(why)

    def _events(self, pieces: Iterable[Piece], index: int) -> bytes:
        return b"".join([self._event(piece, index) for piece in pieces])

    def _event(self, piece: Piece, index: int) -> bytes:
        choice = self._choices[index]
        tokens, choice.tokens = choice.tokens, []
        if isinstance(piece, str):
            return self._chunks.text(piece, tokens, index)
        number, choice.num_calls = choice.num_calls, choice.num_calls + 1
        id = call_id(self._tools.format, id_of_choice(self._request_id, index), number)
        return self._chunks.tool_call(number, id, piece, tokens, index)


@dataclass(slots=True)
class _CallingChoice:
    """What is known of one choice so far."""

    parser: ToolCallParser
    num_calls: int = 0
    tokens: list[ShownToken] = field(default_factory=list)  # in no chunk yet


def id_of_choice(request_id: str, index: int) -> str:
    """From which the ids of its calls follow."""
    return f"{request_id}-{index}" if index else request_id


def message_of(text: str, finish_reason: FinishReason, tools: ToolUse | None, request_id: str) -> dict[str, Any]:
    """A choice's message and finish reason. Without calls it is the text as it is. ``request_id`` is that of the
    choice."""
    content, calls = split_calls(text, tools)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if tools is not None and calls:
        message["content"] = content or None
        message["tool_calls"] = [
            _call_body(call_id(tools.format, request_id, index), call) for index, call in enumerate(calls)
        ]
    return {"message": message, "finish_reason": _reason(finish_reason, len(calls))}


def delta_of(index: int, call_id: str, call: ToolCall) -> dict[str, Any]:
    """What one chunk adds to the message."""
    return {"tool_calls": [{"index": index} | _call_body(call_id, call)]}


def call_id(format: ToolFormat, request_id: str, index: int) -> str:
    """The same whenever the same answer is written."""
    digest = blake2b(f"{request_id}:{index}".encode(), digest_size=12).hexdigest()
    return digest[:MISTRAL_ID_LENGTH] if format is ToolFormat.MISTRAL else f"call_{digest}"


def _call_body(call_id: str, call: ToolCall) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _reason(finish_reason: FinishReason, num_calls: int) -> str:
    """An answer that is cut at its limit of tokens says so, calls or not."""
    return TOOL_CALLS if num_calls and finish_reason is FinishReason.STOP else finish_reason.value
