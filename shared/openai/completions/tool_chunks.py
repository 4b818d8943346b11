"""A chat completion that is streamed, in whose text calls of tools are found."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from shared.openai.completions.answers import AnswerHead
from shared.openai.completions.chunks import ChunkWriter
from shared.openai.logprobs import LogprobsShape
from shared.openai.shown_text import ShownToken
from shared.openai.tools.calls import Piece, ToolCallParser, ToolUse
from shared.openai.tools.definitions import finish_reason_of, message_call
from shared.protocol.sampling import FinishReason


@dataclass(slots=True)
class _CallingChoice:
    """What is known of one choice so far."""

    parser: ToolCallParser
    num_calls: int = 0
    tokens: list[ShownToken] = field(default_factory=list)  # in no chunk yet


class ToolCallChunks(ChunkWriter):
    """A call comes in one chunk, as soon as it is whole; tokens with logprobs, those of calls too, come with the next
    chunk of their choice."""

    def __init__(
        self,
        tools: ToolUse,
        head: AnswerHead,
        include_usage: bool,
        logprobs: LogprobsShape | None = None,
        num_choices: int = 1,
    ) -> None:
        super().__init__(head, include_usage, logprobs, num_choices)
        self._tools = tools
        self._request_id = head.request_id
        self._choices = [_CallingChoice(ToolCallParser(tools)) for _ in range(num_choices)]

    def text(self, text: str, tokens: Sequence[ShownToken] = (), index: int = 0) -> bytes:
        choice = self._choices[index]
        choice.tokens += tokens
        return self._events(choice.parser.push(text), index)

    def finish(self, finish_reason: str, index: int = 0) -> bytes:
        choice = self._choices[index]
        rest = self._events(choice.parser.finish(), index)
        if choice.tokens:
            rest += super().text("", choice.tokens, index)
        return rest + super().finish(finish_reason_of(FinishReason(finish_reason), choice.num_calls), index)

    def _events(self, pieces: Iterable[Piece], index: int) -> bytes:
        return b"".join([self._event(piece, index) for piece in pieces])

    def _event(self, piece: Piece, index: int) -> bytes:
        choice = self._choices[index]
        tokens, choice.tokens = choice.tokens, []
        if isinstance(piece, str):
            return super().text(piece, tokens, index)
        number, choice.num_calls = choice.num_calls, choice.num_calls + 1
        call = message_call(piece, self._tools.format, self._request_id, index, number)
        return self._chunk(index, {"tool_calls": [{"index": number} | msgspec.to_builtins(call)]}, tokens=tokens)
