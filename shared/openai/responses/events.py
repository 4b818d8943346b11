"""The events that stream a response."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from shared.openai.completions.answers import CompletionUsage
from shared.openai.event_json import event_json
from shared.openai.reasoning import Reasoning
from shared.openai.responses.answers import ModelResponse, ResponseError, is_cut_by, with_output
from shared.openai.responses.output import (
    FunctionCall,
    OutputItem,
    OutputParser,
    OutputText,
    Piece,
    ReasoningText,
    Status,
    TextItem,
    Thought,
    next_item,
)
from shared.openai.shown_text import ShownToken
from shared.openai.tools.calls import CalledFunction, ToolUse
from shared.protocol.sampling import FinishReason

CONTENT_INDEX = 0  # an item has one text


class ResponseEvents:
    """Server-sent events of one answer, numbered from 0, in the order of OpenAI's API. Text is told as it comes, a call
    once it is whole."""

    def __init__(
        self,
        begun: ModelResponse,
        now_s: Callable[[], float],
        tools: ToolUse | None = None,
        reasoning: Reasoning | None = None,
    ) -> None:
        """``now_s``: unix time, asked at the end; ``tools``, ``reasoning``: as of ``ended``."""
        self._begun = begun
        self._now_s = now_s
        self._tools = tools
        self._parser = OutputParser(reasoning, tools)
        self._number = 0
        self._output: list[OutputItem] = []  # whole items
        self._item: TextItem | None = None  # that has begun behind them
        self._part: OutputText | ReasoningText = OutputText("")  # of it, without its text
        self._texts: list[str] = []
        self._place: dict[str, Any] = {}
        self._is_cut = False

    def start(self) -> bytes:
        """All that comes before the first item."""
        created = self._event("response.created", response=self._begun)
        return created + self._event("response.in_progress", response=self._begun)

    def text(self, text: str, tokens: Sequence[ShownToken] = (), index: int = 0) -> bytes:
        """More of it; empty where nothing is to be told of it yet."""
        return self._pieces(self._parser.push(text))

    def finish(self, finish_reason: str, index: int = 0) -> bytes:
        """After the last text; there is one choice."""
        shown = self._pieces(self._parser.push("", is_whole=True))
        if not self._output and self._item is None:
            shown += self._begin_text("")
        self._is_cut = is_cut_by(FinishReason(finish_reason), self._output, self._tools)
        return shown + self._end_text("incomplete" if self._is_cut else "completed")

    def end(self, usage: CompletionUsage) -> bytes:
        """The last event."""
        response = with_output(self._begun, self._output, self._is_cut, usage, int(self._now_s()))
        return self._event(f"response.{response.status}", response=response)

    def fail(self, why: str) -> bytes:
        """The only end where there is no whole answer."""
        failed = replace(self._begun, status="failed", error=ResponseError("server_error", why))
        return self._event("response.failed", response=failed)

    def _pieces(self, pieces: Sequence[Piece]) -> bytes:
        shown = [self._call(each) if isinstance(each, CalledFunction) else self._more(each) for each in pieces]
        return b"".join(shown)

    def _more(self, piece: Thought | str) -> bytes:
        begun = b""
        if self._item is None or isinstance(piece, Thought) is not isinstance(self._part, ReasoningText):
            begun = self._end_text("completed") + self._begin_text(piece)
        text = piece.text if isinstance(piece, Thought) else piece
        self._texts.append(text)
        return begun + self._event(f"response.{self._part.type}.delta", **self._place, delta=text, **self._logprobs)

    def _begin_text(self, piece: Thought | str) -> bytes:
        item = next_item(self._begun.id, self._output, piece, self._tools)
        assert not isinstance(item, FunctionCall)
        self._item, self._part = replace(item, status="in_progress", content=[]), replace(item.content[0], text="")
        self._place = {"item_id": item.id, "output_index": len(self._output), "content_index": CONTENT_INDEX}
        added = self._begin(self._item)
        return added + self._event("response.content_part.added", **self._place, part=self._part)

    def _end_text(self, status: Status) -> bytes:
        """Nothing where none has begun."""
        if self._item is None:
            return b""
        text = "".join(self._texts)
        part = replace(self._part, text=text)
        item = replace(self._item, status=status, content=[part])
        self._item = None
        self._texts.clear()
        return (
            self._event(f"response.{part.type}.done", **self._place, text=text, **self._logprobs)
            + self._event("response.content_part.done", **self._place, part=part)
            + self._end(item)
        )

    @property
    def _logprobs(self) -> dict[str, Any]:
        """Those of a message, of which none are told."""
        return {"logprobs": []} if isinstance(self._part, OutputText) else {}

    def _call(self, called: CalledFunction) -> bytes:
        before = self._end_text("completed")
        call = next_item(self._begun.id, self._output, called, self._tools)
        assert isinstance(call, FunctionCall)
        place: dict[str, Any] = {"item_id": call.id, "output_index": len(self._output)}
        return (
            before
            + self._begin(replace(call, status="in_progress", arguments=""))
            + self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
            + self._event("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments)
            + self._end(call)
        )

    def _begin(self, item: OutputItem) -> bytes:
        return self._event("response.output_item.added", output_index=len(self._output), item=item)

    def _end(self, item: OutputItem) -> bytes:
        event = self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        return event

    def _event(self, type: str, **fields: Any) -> bytes:
        data = event_json({"type": type, "sequence_number": self._number} | fields)
        self._number += 1
        return b"event: " + type.encode() + b"\ndata: " + data + b"\n\n"
