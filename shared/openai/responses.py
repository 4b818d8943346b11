"""Completion bodies, stream chunks and errors as OpenAI's clients expect them."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.openai.requests import CHAT
from shared.protocol.messages import FinishReason

_json = msgspec.json.Encoder()

DONE = b"data: [DONE]\n\n"


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request; ``cached_tokens`` of its prompt came from the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def body(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def completion_id(endpoint: str, request_id: str) -> str:
    """The ``id`` that a client sees for a request."""
    return f"{'chatcmpl' if endpoint == CHAT else 'cmpl'}-{request_id}"


def completion_body(
    endpoint: str,
    request_id: str,
    created: int,
    model: str,
    text: str,
    finish_reason: FinishReason,
    usage: Usage,
) -> dict[str, Any]:
    """The whole answer of a request that was not streamed. ``created`` is in unix seconds."""
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason.value}
    if endpoint == CHAT:
        choice["message"] = {"role": "assistant", "content": text, "refusal": None}
    else:
        choice["text"] = text
    return {
        "id": completion_id(endpoint, request_id),
        "object": "chat.completion" if endpoint == CHAT else "text_completion",
        "created": created,
        "model": model,
        "choices": [choice],
        "usage": usage.body(),
    }


def error_body(message: str, type: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """``type`` is as OpenAI's: invalid_request_error, server_error ..."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def error_event(message: str, type: str, code: str | None = None) -> bytes:
    """An error inside a stream; nothing follows it."""
    return b"data: " + _json.encode(error_body(message, type, code=code)) + b"\n\n"


class ChunkWriter:
    """Server-sent events of one stream. All that stays the same from chunk to chunk is encoded once."""

    def __init__(self, endpoint: str, request_id: str, created: int, model: str, include_usage: bool) -> None:
        self._chat = endpoint == CHAT
        head = {
            "id": completion_id(endpoint, request_id),
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": created,
            "model": model,
        }
        self._head = b"data: " + _json.encode(head)[:-1]
        self._usage = b',"usage":null' if include_usage else b""
        delta = b'"delta":{"content":' if self._chat else b'"text":'
        self._text_head = self._head + b',"choices":[{"index":0,"logprobs":null,"finish_reason":null,' + delta
        self._text_tail = (b"}}]" if self._chat else b"}]") + self._usage + b"}\n\n"

    def start(self) -> bytes:
        """The chunk before the first text; text completions have none."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None}, None) if self._chat else b""

    def text(self, text: str) -> bytes:
        return self._text_head + _json.encode(text) + self._text_tail

    def finish(self, finish_reason: FinishReason) -> bytes:
        return self._chunk({}, finish_reason)

    def usage(self, usage: Usage) -> bytes:
        """The last chunk where the client asked for usage."""
        return self._head + b',"choices":[],"usage":' + _json.encode(usage.body()) + b"}\n\n"

    def _chunk(self, delta: dict[str, Any], finish_reason: FinishReason | None) -> bytes:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
        choice |= {"delta": delta} if self._chat else {"text": ""}
        return self._head + b',"choices":[' + _json.encode(choice) + b"]" + self._usage + b"}\n\n"
