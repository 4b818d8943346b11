"""A completion that is streamed, as OpenAI's clients expect its chunks; in those of a chat, calls of tools."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shared.openai.completions.answers import AnswerHead, CompletionUsage
from shared.openai.completions.requests import CHAT
from shared.openai.event_json import event_json
from shared.openai.objects import error_body
from shared.openai.shown_prompt import Echo, ShownPrompt
from shared.openai.shown_text import LogprobsShape, ShownToken
from shared.openai.tools.calls import Piece, ToolCallParser, ToolUse
from shared.openai.tools.definitions import finish_reason_of, message_call
from shared.protocol.sampling import FinishReason, SamplingParams

DONE = b"data: [DONE]\n\n"


@dataclass
class ChunkWriter:
    """Server-sent events of one stream. All that stays the same from chunk to chunk is encoded once."""

    head: AnswerHead
    include_usage: bool
    logprobs: LogprobsShape | None = None  # None where they are not asked for
    num_choices: int = 1
    usage_so_far: Callable[[int], CompletionUsage] | None = None  # of a choice, where each chunk tells it

    def __post_init__(self) -> None:
        self._chat = self.head.endpoint == CHAT
        common = {"object": "chat.completion.chunk" if self._chat else "text_completion"} | self.head.fields()
        self._head = b"data: " + event_json(common)[:-1]
        self._usage = b',"usage":null' if self.include_usage else b""
        delta = b'"delta":{"content":' if self._chat else b'"text":'
        texts = b',"choices":[{"index":%d,"logprobs":null,"finish_reason":null,' + delta
        self._text_heads = [self._head + texts % index for index in range(self.num_choices)]
        self._text_end = b"}}]" if self._chat else b"}]"
        self._plain_tail = self._usage + b"}\n\n"

    def start(self) -> bytes:
        """The chunk of each choice before its first text; text completions have none."""
        if not self._chat:
            return b""
        first = {"role": "assistant", "content": "", "refusal": None}
        return b"".join(self._chunk(index, first) for index in range(self.num_choices))

    def text(self, text: str, tokens: Sequence[ShownToken] = (), index: int = 0) -> bytes:
        """More of a choice's text; ``tokens``: those with logprobs that begin in it. Empty where none is shown yet."""
        if self.logprobs is None or not tokens:
            return self._text_heads[index] + event_json(text) + self._text_end + self._tail(index)
        return self._chunk(index, {"content": text} if self._chat else {"text": text}, tokens=tokens)

    def reasoning(self, text: str, tokens: Sequence[ShownToken] = (), index: int = 0) -> bytes:
        """More of what a choice of a chat thinks before its text."""
        return self._chunk(index, {"reasoning": text}, tokens=tokens)

    def finish(self, finish_reason: str, index: int = 0) -> bytes:
        """The last chunk of a choice."""
        return self._chunk(index, {} if self._chat else {"text": ""}, finish_reason)

    def end(self, usage: CompletionUsage) -> bytes:
        """After the last choice's end: the usage, where the client asked for it, and that nothing follows."""
        if not self._usage:
            return DONE
        return self._head + b',"choices":[],"usage":' + event_json(usage) + b"}\n\n" + DONE

    def fail(self, why: str) -> bytes:
        """Instead of what is left, ``end`` included, where a choice cannot be gone on with."""
        return b"data: " + event_json(error_body(why, "server_error")) + b"\n\n"

    def _chunk(
        self, index: int, content: dict[str, Any], finish_reason: str | None = None, tokens: Sequence[ShownToken] = ()
    ) -> bytes:
        shape = self._shape(index)
        logprobs = shape.body(tokens) if shape is not None and tokens else None
        choice: dict[str, Any] = {"index": index, "logprobs": logprobs, "finish_reason": finish_reason}
        choice |= {"delta": content} if self._chat else content
        return self._event(choice)

    def _shape(self, index: int) -> LogprobsShape | None:
        """Of a choice's logprobs."""
        return self.logprobs

    def _event(self, choice: dict[str, Any]) -> bytes:
        return self._head + b',"choices":[' + event_json(choice) + b"]" + self._tail(choice["index"])

    def _tail(self, index: int) -> bytes:
        """Of a chunk of the choice."""
        if self.usage_so_far is None:
            return self._plain_tail
        return b',"usage":' + event_json(self.usage_so_far(index)) + b"}\n\n"


@dataclass
class EchoChunks(ChunkWriter):
    """Of a text whose prompt is shown before it: in a chunk of its own, the first of each choice."""

    echoes: Sequence[Echo] = field(kw_only=True)  # of each choice
    prompt_of: Callable[[int], ShownPrompt] = field(kw_only=True)  # of a choice, once it has a token or its end
    sampling: SamplingParams = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._are_echoed = [False] * self.num_choices

    def text(self, text: str, tokens: Sequence[ShownToken] = (), index: int = 0) -> bytes:
        return self._prompt(index) + super().text(text, tokens, index)

    def finish(self, finish_reason: str, index: int = 0) -> bytes:
        return self._prompt(index) + super().finish(finish_reason, index)

    def _prompt(self, index: int) -> bytes:
        if self._are_echoed[index]:
            return b""
        self._are_echoed[index] = True
        echo, logprobs = self.echoes[index], None
        if self.sampling.logprobs is not None:
            logprobs = self.prompt_of(index).logprobs(echo, self.sampling)
        return self._event({"index": index, "logprobs": logprobs, "finish_reason": None, "text": echo.text})

    def _shape(self, index: int) -> LogprobsShape | None:
        return None if self.logprobs is None else self.echoes[index].before(self.logprobs)


@dataclass
class ToolCallChunks(ChunkWriter):
    """Of a chat in whose text calls of tools are found. A call comes in one chunk, as soon as it is whole; until then
    chunks are without text, so that whoever waits for one is not in silence."""

    tools: ToolUse = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._choices = [_CallingChoice(ToolCallParser(self.tools)) for _ in range(self.num_choices)]

    def text(self, text: str, tokens: Sequence[ShownToken] = (), index: int = 0) -> bytes:
        pieces = self._choices[index].parser.push(text)
        return self._events(pieces, tokens, index) or super().text("", tokens, index)

    def finish(self, finish_reason: str, index: int = 0) -> bytes:
        choice = self._choices[index]
        rest = self._events(choice.parser.finish(), (), index)
        told = finish_reason_of(FinishReason(finish_reason), choice.num_calls, self.tools)
        return rest + super().finish(told, index)

    def _events(self, pieces: Sequence[Piece], tokens: Sequence[ShownToken], index: int) -> bytes:
        """The tokens come with the first."""
        return b"".join([self._piece(piece, () if place else tokens, index) for place, piece in enumerate(pieces)])

    def _piece(self, piece: Piece, tokens: Sequence[ShownToken], index: int) -> bytes:
        if isinstance(piece, str):
            return super().text(piece, tokens, index)
        choice = self._choices[index]
        number, choice.num_calls = choice.num_calls, choice.num_calls + 1
        call = message_call(piece, self.tools.format, self.head.request_id, index, number)
        return self._chunk(index, {"tool_calls": [{"index": number} | msgspec.to_builtins(call)]}, tokens=tokens)


@dataclass(slots=True)
class _CallingChoice:
    """What is known of one choice so far."""

    parser: ToolCallParser
    num_calls: int = 0
