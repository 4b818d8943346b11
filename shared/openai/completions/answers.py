"""Completion bodies, stream chunks and errors as OpenAI's clients expect them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from shared.openai.completions.requests import CHAT
from shared.openai.logprobs import LogprobsShape
from shared.openai.objects import ErrorAnswer, ErrorDetail
from shared.openai.shown_text import ShownToken
from shared.openai.tools.answers import delta_of, id_of_choice, message_of
from shared.openai.tools.calls import ToolCall, ToolUse
from shared.openai.usage import Usage as Usage
from shared.protocol.sampling import FinishReason

_json = msgspec.json.Encoder()

DONE = b"data: [DONE]\n\n"


def completion_id(endpoint: str, request_id: str) -> str:
    """The ``id`` that a client sees for a request."""
    return f"{'chatcmpl' if endpoint == CHAT else 'cmpl'}-{request_id}"


class Choice(msgspec.Struct, frozen=True):
    """One answer, whole."""

    text: str
    finish_reason: FinishReason
    logprobs: dict[str, Any] | None = None  # where they were asked for

    def body(self, endpoint: str, index: int, request_id: str, tools: ToolUse | None) -> dict[str, Any]:
        """``request_id``: of the request whose choice it is."""
        body: dict[str, Any] = {"index": index, "logprobs": self.logprobs, "finish_reason": self.finish_reason.value}
        if endpoint == CHAT:
            return body | message_of(self.text, self.finish_reason, tools, id_of_choice(request_id, index))
        return body | {"text": self.text}


def completion_body(
    endpoint: str,
    request_id: str,
    created: int,
    model: str,
    choices: Sequence[Choice],
    usage: Usage,
    service_tier: str | None = None,
    tools: ToolUse | None = None,
) -> dict[str, Any]:
    """The whole answer of a request that was not streamed. ``created`` is in unix seconds; ``service_tier``: that it
    was served in, where that is to be told; ``tools``: whose calls are to be found in the texts."""
    return {
        "id": completion_id(endpoint, request_id),
        "object": "chat.completion" if endpoint == CHAT else "text_completion",
        "created": created,
        "model": model,
        "choices": [choice.body(endpoint, index, request_id, tools) for index, choice in enumerate(choices)],
        "usage": usage.body(),
        **_tier(service_tier),
    }


def _tier(service_tier: str | None) -> dict[str, str]:
    return {} if service_tier is None else {"service_tier": service_tier}


def error_body(message: str, type: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """``type`` is as OpenAI's: invalid_request_error, server_error ..."""
    body: dict[str, Any] = msgspec.to_builtins(ErrorAnswer(ErrorDetail(message, type, param, code)))
    return body


def error_event(message: str, type: str, code: str | None = None) -> bytes:
    """An error inside a stream; nothing follows it."""
    return b"data: " + _json.encode(error_body(message, type, code=code)) + b"\n\n"


class ChunkWriter:
    """Server-sent events of one stream. All that stays the same from chunk to chunk is encoded once."""

    def __init__(
        self,
        endpoint: str,
        request_id: str,
        created: int,
        model: str,
        include_usage: bool,
        service_tier: str | None = None,
        logprobs: LogprobsShape | None = None,
        num_choices: int = 1,
    ) -> None:
        """``logprobs``: None where they are not asked for."""
        self._logprobs = logprobs
        self._chat = endpoint == CHAT
        head = {
            "id": completion_id(endpoint, request_id),
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": created,
            "model": model,
            **_tier(service_tier),
        }
        self._head = b"data: " + _json.encode(head)[:-1]
        self._usage = b',"usage":null' if include_usage else b""
        delta = b'"delta":{"content":' if self._chat else b'"text":'
        texts = b',"choices":[{"index":%d,"logprobs":null,"finish_reason":null,' + delta
        self._text_heads = [self._head + texts % index for index in range(num_choices)]
        self._text_tail = (b"}}]" if self._chat else b"}]") + self._usage + b"}\n\n"

    def start(self) -> bytes:
        """The chunk of each choice before its first text; text completions have none."""
        if not self._chat:
            return b""
        first = {"role": "assistant", "content": "", "refusal": None}
        return b"".join(self._chunk(index, first, None) for index in range(len(self._text_heads)))

    def text(self, text: str, tokens: Sequence[ShownToken] = (), index: int = 0) -> bytes:
        """``tokens``: those whose text begins in this one, where logprobs were asked for."""
        if self._logprobs is None or not tokens:
            return self._text_heads[index] + _json.encode(text) + self._text_tail
        content = {"content": text} if self._chat else {"text": text}
        return self._chunk(index, content, None, self._logprobs.body(tokens))

    def tool_call(
        self, number: int, call_id: str, call: ToolCall, tokens: Sequence[ShownToken] = (), index: int = 0
    ) -> bytes:
        """A whole one; ``number`` counts those of the choice."""
        logprobs = self._logprobs.body(tokens) if self._logprobs is not None and tokens else None
        return self._chunk(index, delta_of(number, call_id, call), None, logprobs)

    def finish(self, finish_reason: str, index: int = 0) -> bytes:
        """The last chunk of a choice."""
        return self._chunk(index, {} if self._chat else {"text": ""}, finish_reason)

    def end(self, usage: Usage) -> bytes:
        """After the last choice's end: the usage, where the client asked for it, and that nothing follows."""
        if not self._usage:
            return DONE
        return self._head + b',"choices":[],"usage":' + _json.encode(usage.body()) + b"}\n\n" + DONE

    def fail(self, why: str) -> bytes:
        """Instead of ``end``, where a choice cannot be gone on with."""
        return error_event(why, "server_error")

    def _chunk(
        self,
        index: int,
        content: dict[str, Any],
        finish_reason: str | None,
        logprobs: dict[str, Any] | None = None,
    ) -> bytes:
        choice: dict[str, Any] = {"index": index, "logprobs": logprobs, "finish_reason": finish_reason}
        choice |= {"delta": content} if self._chat else content
        return self._head + b',"choices":[' + _json.encode(choice) + b"]" + self._usage + b"}\n\n"
