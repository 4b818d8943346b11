"""Calls of tools in a model's text, as the text comes."""

import json
import math
import re
from collections.abc import Generator
from typing import Any, TypeVar

import msgspec

from shared.openai.errors import RequestError
from shared.openai.fields import check_depth
from shared.text.overlap import overlap
from shared.text.tool_format import ARGUMENTS, BEGINS, HERMES_END, ToolFormat

HALF_PAIRS = re.compile("[\ud800-\udfff]")


class ToolUse(msgspec.Struct, frozen=True):
    """What a request allows: calls of functions with these names, where their format is known."""

    format: ToolFormat
    names: list[str]
    is_parallel: bool = True  # more than one call


class CalledFunction(msgspec.Struct):
    """``arguments``: JSON of an object."""

    name: str
    arguments: str


Piece = str | CalledFunction
T = TypeVar("T")
Parsing = Generator[None, None, T]


class ToolCallParser:
    """Text comes out as soon as it can be part of no call, a call once it is whole. What only looks like a call (no
    JSON, a function that was not given, arguments that are no object, cut at the end) comes out as the text that it
    is; white space around calls does not. However the text is cut into pieces, the same comes out."""

    def __init__(self, tools: ToolUse) -> None:
        self._tools = tools
        self._buffer = ""  # neither shown nor called yet
        self._is_whole = False  # no more text comes
        self._space = ""  # shown where text follows it
        self._found: list[Piece] = []
        self._num_calls = 0
        self._parsing = self._one_message() if tools.format is ToolFormat.LLAMA else self._marked_calls()

    def push(self, text: str) -> list[Piece]:
        """What is sure by now."""
        self._buffer += text
        next(self._parsing, None)
        found, self._found = self._found, []
        return found

    def finish(self) -> list[Piece]:
        """The rest, when no more text comes."""
        self._is_whole = True
        found = self.push("")
        return [*found, self._space] if self._space and not self._num_calls else found

    # What follows are generators, which yield where they need more of the text.

    def _more(self) -> Parsing[bool]:
        """Whether there may be any."""
        if not self._is_whole:
            yield
        return not self._is_whole

    def _marked_calls(self) -> Parsing[None]:
        """Calls behind a mark each, anywhere in a message."""
        mark = BEGINS[self._tools.format]
        while True:
            at = self._buffer.find(mark)
            self._show(at if at >= 0 else len(self._buffer) - overlap(self._buffer, mark))
            if at >= 0:
                end, calls = yield from self._calls(len(mark))
                self._take(end, calls)
                if calls and not self._tools.is_parallel:
                    return
            elif not (yield from self._more()):
                self._show(len(self._buffer))
                return

    def _one_message(self) -> Parsing[None]:
        """Calls that are the whole message: the first behind a mark or none, others behind a semicolon or none."""
        mark = BEGINS[self._tools.format]
        while mark.startswith(text := self._buffer.lstrip()) and text != mark:
            if not (yield from self._more()):
                break
        text = text.removeprefix(mark)
        while True:
            end, calls = yield from self._calls(len(self._buffer) - len(text))
            self._take(end, calls)
            if not calls:
                break
            if not self._tools.is_parallel:
                return
            while not (text := self._buffer.lstrip(" \t\r\n;")):
                if not (yield from self._more()):
                    return
        self._show(len(self._buffer))
        while (yield from self._more()):
            self._show(len(self._buffer))

    def _calls(self, start: int) -> Parsing[tuple[int, list[CalledFunction]]]:
        """Those of the value at ``start``, and where they end; without any, where the text ends that looked like it."""
        end = yield from self._value_end(start, "[" if self._tools.format is ToolFormat.MISTRAL else "{")
        calls = self._read(self._buffer[start:end])
        if calls and self._tools.format is ToolFormat.HERMES:
            while HERMES_END.startswith(rest := self._buffer[end:].lstrip()) and rest != HERMES_END:
                if not (yield from self._more()):
                    return len(self._buffer), calls
            if not rest.startswith(HERMES_END):
                return end, []
            end = len(self._buffer) - len(rest) + len(HERMES_END)
        return end, calls

    def _value_end(self, start: int, opening: str) -> Parsing[int]:
        """The index after a JSON value; ``start`` where it does not begin with ``opening``, and the buffer's end where
        it is cut. Looks at each character once; whether the value is valid is for a decoder to say."""
        at, depth, is_quoted = start, 0, False
        while True:
            while at >= len(self._buffer):
                if not (yield from self._more()):
                    return len(self._buffer)
            character = self._buffer[at]
            at += 1
            if is_quoted:
                is_quoted = character != '"'
                if character == "\\":  # the next is part of the string, whatever it is
                    at += 1
            elif depth == 0 and not character.isspace() and character != opening:
                return start
            elif character == '"':
                is_quoted = True
            elif character in "{[":
                depth += 1
            elif character in "}]":
                depth -= 1
                if depth == 0:
                    return at

    def _take(self, end: int, calls: list[CalledFunction]) -> None:
        """What is in the buffer up to there: calls, or the text that only looked like some."""
        if calls:
            self._found += calls if self._tools.is_parallel else calls[:1]
            self._num_calls += len(calls)
            self._buffer, self._space = self._buffer[end:], ""
        else:
            self._show(end)

    def _show(self, end: int) -> None:
        """What is in the buffer up to there is text."""
        text = self._space + self._buffer[:end]
        shown = text.rstrip()
        self._buffer, self._space = self._buffer[end:], text[len(shown) :]
        if shown:
            self._found.append(shown)

    def _read(self, text: str) -> list[CalledFunction]:
        """The calls of one value; none where it holds anything else."""
        try:
            value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
            values = value if self._tools.format is ToolFormat.MISTRAL else [value]
            calls = [self._read_call(each) for each in values]
        except (ValueError, RecursionError, RequestError):
            return []
        return [] if None in calls else [call for call in calls if call is not None]

    def _read_call(self, value: Any) -> CalledFunction | None:
        """Llama's models write now and then what others call the arguments."""
        if not isinstance(value, dict):
            return None
        name, key = value.get("name"), ARGUMENTS[self._tools.format]
        arguments = value.get(key, value.get("arguments"))
        if not isinstance(arguments, dict):
            return None
        check_depth(key, arguments)
        return CalledFunction(name, _json_text(arguments)) if name in self._tools.names else None


def _no_number(name: str) -> Any:
    """NaN and its like are no JSON."""
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _json_text(value: Any) -> str:
    """With U+FFFD for half of a surrogate pair, which JSON may name: it is no text, and not every reader takes it."""
    return HALF_PAIRS.sub("\N{REPLACEMENT CHARACTER}", json.dumps(value, ensure_ascii=False))


def split_calls(text: str, tools: ToolUse | None) -> tuple[str, list[CalledFunction]]:
    """A whole text: what is no call, and the calls."""
    if tools is None:
        return text, []
    parser = ToolCallParser(tools)
    pieces = parser.push(text) + parser.finish()
    calls = [piece for piece in pieces if isinstance(piece, CalledFunction)]
    return "".join(piece for piece in pieces if isinstance(piece, str)), calls
