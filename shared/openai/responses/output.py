"""The items of a response's output: what the model thinks, what it says, and calls of functions, in the order in which
it writes them."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from shared.openai.reasoning import Reasoning, ReasoningParser
from shared.openai.tools.calls import CalledFunction, ToolCallParser, ToolUse
from shared.openai.tools.definitions import message_call

RESPONSE_PREFIX = "resp_"

_ITEM_ID = re.compile(r"(?:msg|rs|fc)_(?P<request>[A-Za-z0-9-]+)(?:_\d+)?")

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, frozen=True):
    """A message's content."""

    text: str
    type: Literal["output_text"] = "output_text"
    annotations: list[dict[str, Any]] = []
    logprobs: list[dict[str, Any]] = []


class ReasoningText(msgspec.Struct, frozen=True):
    """A thought's content."""

    text: str
    type: Literal["reasoning_text"] = "reasoning_text"


class OutputMessage(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """What the model said."""

    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class ReasoningItem(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """What a model that marks it thought before. It is told as it is, and not in summary."""

    id: str
    status: Status
    content: list[ReasoningText]
    summary: list[dict[str, Any]] = []


class FunctionCall(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call of a function; its output comes back by its ``call_id``. ``arguments``: JSON of an object."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Status = "completed"


TextItem = OutputMessage | ReasoningItem
OutputItem = TextItem | FunctionCall


class Thought(msgspec.Struct, frozen=True):
    """Reasoning in an output's text."""

    text: str


Piece = Thought | str | CalledFunction


class OutputParser:
    """An output's text in pieces, as it comes; however it is cut, the same comes out."""

    def __init__(self, reasoning: Reasoning | None, tools: ToolUse | None) -> None:
        self._reasoning = None if reasoning is None else ReasoningParser(reasoning)
        self._calls = None if tools is None else ToolCallParser(tools)

    def push(self, text: str, is_whole: bool = False) -> list[Piece]:
        """What is sure by now; ``is_whole``: no more text comes."""
        pieces: list[Piece] = []
        if self._reasoning is not None:
            thought, text = self._reasoning.push(text, is_whole)
            pieces += [Thought(thought)] if thought else []
        if self._calls is None:
            return [*pieces, text] if text else pieces
        pieces += self._calls.push(text)
        if is_whole:
            pieces += self._calls.finish()
        return pieces


def next_item(response_id: str, before: Sequence[OutputItem], piece: Piece, tools: ToolUse | None) -> OutputItem:
    """Of a whole piece after the items ``before``."""
    request_id = response_id.removeprefix(RESPONSE_PREFIX)
    own = f"{request_id}_{len(before)}" if before else request_id
    if isinstance(piece, str):
        return OutputMessage(f"msg_{own}", "completed", [OutputText(piece)])
    if isinstance(piece, Thought):
        return ReasoningItem(f"rs_{own}", "completed", [ReasoningText(piece.text)])
    assert tools is not None
    call = message_call(piece, tools.format, request_id, choice=0, number=num_calls(before))
    return FunctionCall(f"fc_{own}", call.id, piece.name, piece.arguments)


def response_of(item_id: str) -> str | None:
    """The id of the response that has the item in its output; None where no such item has this id."""
    match = _ITEM_ID.fullmatch(item_id)
    return None if match is None else f"{RESPONSE_PREFIX}{match['request']}"


def num_calls(output: Sequence[OutputItem]) -> int:
    return sum(isinstance(item, FunctionCall) for item in output)
