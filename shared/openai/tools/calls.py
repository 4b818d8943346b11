"""Calls of tools in a model's text, as the text comes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from shared.openai.tools.json_scanner import JsonScanner
from shared.text.tool_format import ARGUMENTS, BEGINS, HERMES_END, ToolFormat


class ToolUse(msgspec.Struct, frozen=True):
    """What a request allows: calls of functions with these names, where their format is known."""

    format: ToolFormat
    names: list[str]
    is_parallel: bool = True  # more than one call


@dataclass(frozen=True, slots=True)
class ToolCall:
    """``arguments``: JSON of an object."""

    name: str
    arguments: str


Piece = str | ToolCall


class ToolCallParser:
    """Text comes out as soon as it can be part of no call, a call once it is whole. What only looks like a call (no
    JSON, a function that was not given, arguments that are no object, cut at the end) comes out as the text that it
    is; white space around calls does not. However the text is cut into pieces, the same comes out."""

    def __init__(self, tools: ToolUse) -> None:
        self._tools = tools
        self._begin = BEGINS[tools.format]
        self._buffer = ""  # not looked at yet
        self._raw = ""  # of what may be a call, up to the buffer
        self._value_start = 0  # in _raw
        self._scanner = JsonScanner("[")
        self._pending: list[ToolCall] = []  # waiting for their end mark
        self._space = ""  # shown where text follows it
        self._found: list[Piece] = []
        self._num_calls = 0
        self._step: Callable[[], bool] = self._at_start if tools.format is ToolFormat.LLAMA else self._in_text

    def push(self, text: str) -> list[Piece]:
        """What is sure by now."""
        self._buffer += text
        while self._step():
            continue
        found, self._found = self._found, []
        return found

    def finish(self) -> list[Piece]:
        """The rest, when no more text comes."""
        if self._pending:
            self._call(self._pending)
        elif self._step != self._after_call:
            self._show(self._raw + self._buffer)
        if not self._num_calls and self._space:
            self._found.append(self._space)
        found, self._found = self._found, []
        return found

    # Each step looks at the buffer, and says whether the next one has something to look at.

    def _in_text(self) -> bool:
        at = self._buffer.find(self._begin)
        if at >= 0:
            self._show(self._buffer[:at])
            self._raw, self._buffer = self._begin, self._buffer[at + len(self._begin) :]
            self._expect_value("[" if self._tools.format is ToolFormat.MISTRAL else "{")
            return True
        cut = len(self._buffer) - _overlap(self._buffer, self._begin)
        self._show(self._buffer[:cut])
        self._buffer = self._buffer[cut:]
        return False

    def _at_start(self) -> bool:
        """Of a message that may be a call as a whole."""
        text = self._buffer.lstrip()
        if text.startswith(self._begin):
            cut = len(self._buffer) - len(text) + len(self._begin)
            self._raw, self._buffer = self._buffer[:cut], self._buffer[cut:]
        elif self._begin.startswith(text):
            return False
        self._expect_value("{")
        return True

    def _after_call(self) -> bool:
        """Of a message that is a call: another may follow, after a semicolon or none."""
        text = self._buffer.lstrip(" \t\r\n;")
        if not text:
            return False
        cut = len(self._buffer) - len(text)
        self._raw, self._buffer = self._buffer[:cut], text
        self._expect_value("{")
        return True

    def _in_value(self) -> bool:
        end = self._scanner.end_in(self._buffer)
        if self._scanner.is_broken:
            return self._give_up()
        if end is None:
            self._raw, self._buffer = self._raw + self._buffer, ""
            return False
        self._raw, self._buffer = self._raw + self._buffer[:end], self._buffer[end:]
        calls = self._read(self._raw[self._value_start :])
        if calls is None:
            return self._give_up()
        if self._tools.format is ToolFormat.HERMES:
            self._pending, self._step = calls, self._at_end_mark
        else:
            self._call(calls)
        return True

    def _at_end_mark(self) -> bool:
        text = self._buffer.lstrip()
        if text.startswith(HERMES_END):
            self._buffer = text[len(HERMES_END) :]
            self._call(self._pending)
            return True
        if HERMES_END.startswith(text):
            return False
        self._pending = []
        return self._give_up()

    def _as_text(self) -> bool:
        self._show(self._buffer)
        self._buffer = ""
        return False

    def _as_nothing(self) -> bool:
        """After the one call that was allowed."""
        self._buffer = ""
        return False

    def _expect_value(self, opening: str) -> None:
        self._value_start = len(self._raw)
        self._scanner = JsonScanner(opening)
        self._step = self._in_value

    def _give_up(self) -> bool:
        """It was no call."""
        raw, self._raw = self._raw, ""
        self._show(raw)
        self._step = self._as_text if self._tools.format is ToolFormat.LLAMA else self._in_text
        return True

    def _call(self, calls: list[ToolCall]) -> None:
        if not self._tools.is_parallel:
            calls = calls[:1]
        self._found += calls
        self._num_calls += len(calls)
        self._raw, self._space, self._pending = "", "", []
        if not self._tools.is_parallel:
            self._step = self._as_nothing
        else:
            self._step = self._after_call if self._tools.format is ToolFormat.LLAMA else self._in_text

    def _show(self, text: str) -> None:
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self._found.append(shown)

    def _read(self, text: str) -> list[ToolCall] | None:
        """The calls of one value; None where it holds anything else."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        values = value if self._tools.format is ToolFormat.MISTRAL else [value]
        calls = [self._read_call(each) for each in values]
        return [call for call in calls if call is not None] if calls and None not in calls else None

    def _read_call(self, value: Any) -> ToolCall | None:
        key = ARGUMENTS[self._tools.format]
        if not isinstance(value, dict) or not isinstance(value.get(key), dict):
            return None
        name = value.get("name")
        return ToolCall(name, json.dumps(value[key], ensure_ascii=False)) if name in self._tools.names else None


def split_calls(text: str, tools: ToolUse | None) -> tuple[str, list[ToolCall]]:
    """A whole text: what is no call, and the calls."""
    if tools is None:
        return text, []
    parser = ToolCallParser(tools)
    pieces = parser.push(text) + parser.finish()
    calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
    return "".join(piece for piece in pieces if isinstance(piece, str)), calls


def _overlap(text: str, mark: str) -> int:
    """The length of the longest end of ``text`` that is a proper beginning of ``mark``."""
    return next((length for length in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:length])), 0)
