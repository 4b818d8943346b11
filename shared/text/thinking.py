"""How a model marks what it thinks before it answers: known by what its chat template has of it."""

from typing import NamedTuple


class ThinkingMarks(NamedTuple):
    """What stands before and behind it."""

    begin: str
    end: str


KNOWN = (ThinkingMarks("<think>", "</think>"), ThinkingMarks("[THINK]", "[/THINK]"))


def thinking_marks_of(chat_template: str) -> ThinkingMarks | None:
    """None where the template has no such marks."""
    return next((marks for marks in KNOWN if marks.end in chat_template), None)
