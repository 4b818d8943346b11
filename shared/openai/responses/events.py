"""The events that stream a response."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from shared.openai.completions.answers import CompletionUsage
from shared.openai.event_json import event_json
from shared.openai.responses.answers import (
    FunctionCall,
    ModelResponse,
    OutputItem,
    OutputMessage,
    OutputText,
    ResponseError,
    Status,
    is_cut_by,
    next_item,
    with_output,
)
from shared.openai.shown_text import ShownToken
from shared.openai.tools.calls import CalledFunction, Piece, ToolCallParser, ToolUse
from shared.protocol.sampling import FinishReason

CONTENT_INDEX = 0  # a message has one text


class ResponseEvents:
    """Server-sent events of one answer, numbered from 0, in the order of OpenAI's API. Text is told as it comes, a call
    once it is whole."""

    def __init__(self, begun: ModelResponse, now_s: Callable[[], float], tools: ToolUse | None = None) -> None:
        """``now_s``: unix time, asked at the end; ``tools``: whose calls are to be found in the text."""
        self._begun = begun
        self._now_s = now_s
        self._tools = tools
        self._parser = None if tools is None else ToolCallParser(tools)
        self._number = 0
        self._output: list[OutputItem] = []  # whole items
        self._message: OutputMessage | None = None  # that has begun behind them
        self._texts: list[str] = []  # of it
        self._place: dict[str, Any] = {}  # of its text
        self._is_cut = False

    def start(self) -> bytes:
        """All that comes before the first item."""
        created = self._event("response.created", response=self._begun)
        return created + self._event("response.in_progress", response=self._begun)

    def text(self, text: str, tokens: Sequence[ShownToken] = (), index: int = 0) -> bytes:
        """More of it; empty where nothing is to be told of it yet."""
        if not text:
            return b""
        return self._pieces([text] if self._parser is None else self._parser.push(text))

    def finish(self, finish_reason: str, index: int = 0) -> bytes:
        """After the last text; there is one choice."""
        shown = b"" if self._parser is None else self._pieces(self._parser.finish())
        if not self._output and self._message is None:
            shown += self._begin_message()
        self._is_cut = is_cut_by(FinishReason(finish_reason), self._output, self._tools)
        return shown + self._end_message("incomplete" if self._is_cut else "completed")

    def end(self, usage: CompletionUsage) -> bytes:
        """The last event."""
        response = with_output(self._begun, self._output, self._is_cut, usage, int(self._now_s()))
        return self._event(f"response.{response.status}", response=response)

    def fail(self, why: str) -> bytes:
        """The only end where there is no whole answer."""
        failed = replace(self._begun, status="failed", error=ResponseError("server_error", why))
        return self._event("response.failed", response=failed)

    def _pieces(self, pieces: Sequence[Piece]) -> bytes:
        return b"".join([self._more(piece) if isinstance(piece, str) else self._call(piece) for piece in pieces])

    def _more(self, text: str) -> bytes:
        begun = self._begin_message() if self._message is None else b""
        self._texts.append(text)
        return begun + self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def _begin_message(self) -> bytes:
        message = next_item(self._begun, self._output, "", self._tools)
        assert isinstance(message, OutputMessage)
        self._message = replace(message, status="in_progress", content=[])
        place = {"output_index": len(self._output), "content_index": CONTENT_INDEX}
        self._place = {"item_id": message.id} | place
        added = self._begin(self._message)
        return added + self._event("response.content_part.added", **self._place, part=OutputText(""))

    def _end_message(self, status: Status) -> bytes:
        """Nothing where none has begun."""
        if self._message is None:
            return b""
        text = "".join(self._texts)
        message = replace(self._message, status=status, content=[OutputText(text)])
        self._message = None
        self._texts.clear()
        return (
            self._event("response.output_text.done", **self._place, text=text, logprobs=[])
            + self._event("response.content_part.done", **self._place, part=OutputText(text))
            + self._end(message)
        )

    def _call(self, called: CalledFunction) -> bytes:
        before = self._end_message("completed")
        call = next_item(self._begun, self._output, called, self._tools)
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
