"""A completion that is streamed, as OpenAI's clients expect its chunks."""

from collections.abc import Sequence
from typing import Any

import msgspec

from shared.openai.completions.answers import AnswerHead
from shared.openai.completions.objects import CompletionUsage
from shared.openai.completions.requests import CHAT
from shared.openai.logprobs import LogprobsShape
from shared.openai.objects import error_body
from shared.openai.shown_text import ShownToken

_json = msgspec.json.Encoder()

DONE = b"data: [DONE]\n\n"


class ChunkWriter:
    """Server-sent events of one stream. All that stays the same from chunk to chunk is encoded once."""

    def __init__(
        self, head: AnswerHead, include_usage: bool, logprobs: LogprobsShape | None = None, num_choices: int = 1
    ) -> None:
        """``logprobs``: None where they are not asked for."""
        self._logprobs = logprobs
        self._chat = head.endpoint == CHAT
        common: dict[str, Any] = {
            "id": head.id,
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": head.created,
            "model": head.model,
        }
        if head.service_tier is not None:
            common["service_tier"] = head.service_tier
        self._head = b"data: " + _json.encode(common)[:-1]
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
        return b"".join(self._chunk(index, first) for index in range(len(self._text_heads)))

    def text(self, text: str, tokens: Sequence[ShownToken] = (), index: int = 0) -> bytes:
        """More of a choice's text; ``tokens``: those that begin in it, where logprobs were asked for. Empty where none
        of it can be shown yet."""
        if self._logprobs is None or not tokens:
            return self._text_heads[index] + _json.encode(text) + self._text_tail
        return self._chunk(index, {"content": text} if self._chat else {"text": text}, tokens=tokens)

    def finish(self, finish_reason: str, index: int = 0) -> bytes:
        """The last chunk of a choice."""
        return self._chunk(index, {} if self._chat else {"text": ""}, finish_reason)

    def end(self, usage: CompletionUsage) -> bytes:
        """After the last choice's end: the usage, where the client asked for it, and that nothing follows."""
        if not self._usage:
            return DONE
        return self._head + b',"choices":[],"usage":' + _json.encode(usage) + b"}\n\n" + DONE

    def fail(self, why: str) -> bytes:
        """Instead of what is left, ``end`` included, where a choice cannot be gone on with."""
        return b"data: " + _json.encode(error_body(why, "server_error")) + b"\n\n"

    def _chunk(
        self, index: int, content: dict[str, Any], finish_reason: str | None = None, tokens: Sequence[ShownToken] = ()
    ) -> bytes:
        logprobs = self._logprobs.body(tokens) if self._logprobs is not None and tokens else None
        choice: dict[str, Any] = {"index": index, "logprobs": logprobs, "finish_reason": finish_reason}
        choice |= {"delta": content} if self._chat else content
        return self._head + b',"choices":[' + _json.encode(choice) + b"]" + self._usage + b"}\n\n"
