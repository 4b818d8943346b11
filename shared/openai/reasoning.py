"""What a model thinks before it answers, in its text, as the text comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from shared.text.overlap import overlap
from shared.text.tokenizer import Tokenizer

TAIL_TOKENS = 16  # of a prompt, that the mark which it ends with is in


class Reasoning(msgspec.Struct, frozen=True):
    """That an answer's text may have before its content."""

    begin: str  # the marks around it
    end: str
    is_open: bool = False  # the prompt has begun it
    is_shown: bool = True  # its client sees it

    @classmethod
    def of(cls, prompt: Sequence[int], continued: str, is_shown: bool, tokenizer: Tokenizer) -> Reasoning | None:
        """Of the model's answer to the prompt; ``continued``: what of the answer the prompt has already. None where it
        marks none."""
        if tokenizer.thinking is None:
            return None
        begin, end = tokenizer.thinking
        tail = tokenizer.decode(prompt[-TAIL_TOKENS:], skip_special_tokens=False)
        is_open = tail.rstrip().endswith(begin) or continued.rfind(begin) > continued.rfind(end)
        return cls(begin, end, is_open, is_shown)


class Parted(NamedTuple):
    """A piece of text: what of it is reasoning comes before what is content."""

    reasoning: str
    content: str


class ReasoningParser:
    """Parts a text as it comes. White space around the reasoning belongs to neither part; however the text is cut into
    pieces, the same comes out. What begins with anything but the mark is content."""

    def __init__(self, reasoning: Reasoning) -> None:
        self._marks = reasoning
        self._buffer = ""  # not parted yet
        self._is_inside = reasoning.is_open
        self._is_content = False
        self._has_begun = False  # the part that it is in has text

    @property
    def is_inside(self) -> bool:
        """What comes next is reasoning, as far as it is known."""
        return self._is_inside

    def push(self, text: str, is_whole: bool = False) -> Parted:
        """What is sure by now; ``is_whole``: no more text comes."""
        self._buffer += text
        reasoning = ""
        if not self._is_inside and not self._is_content:
            self._begin(is_whole)
        if self._is_inside:
            reasoning = self._reasoning(is_whole)
        return Parted(reasoning, self._content() if self._is_content else "")

    def _begin(self, is_whole: bool) -> None:
        mark, text = self._marks.begin, self._buffer.lstrip()
        if text.startswith(mark):
            self._is_inside, self._buffer = True, text[len(mark) :]
        elif is_whole or not mark.startswith(text):
            self._is_content = self._has_begun = True

    def _reasoning(self, is_whole: bool) -> str:
        mark = self._marks.end
        at = self._buffer.find(mark)
        if at >= 0:
            text, self._buffer = self._buffer[:at].rstrip(), self._buffer[at + len(mark) :]
        else:
            num_held = 0 if is_whole else overlap(self._buffer, mark)
            text = self._buffer[: len(self._buffer) - num_held].rstrip()
            self._buffer = self._buffer[len(text) :]
        shown = text if self._has_begun else text.lstrip()
        self._has_begun = self._has_begun or bool(shown)
        if at >= 0:
            self._is_inside, self._is_content, self._has_begun = False, True, False
        return shown

    def _content(self) -> str:
        text, self._buffer = self._buffer, ""
        shown = text if self._has_begun else text.lstrip()
        self._has_begun = self._has_begun or bool(shown)
        return shown


def part(text: str, reasoning: Reasoning | None) -> tuple[str | None, str]:
    """A whole text: its reasoning, None where there is none or it is not to be shown, and its content."""
    if reasoning is None:
        return None, text
    parted = ReasoningParser(reasoning).push(text, is_whole=True)
    return parted.reasoning if reasoning.is_shown and parted.reasoning else None, parted.content
