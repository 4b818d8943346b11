"""Where a JSON value ends in text that comes in pieces."""

from __future__ import annotations

OPENING, CLOSING = "{[", "}]"


class JsonScanner:
    """Follows brackets and strings, each character once; whether the value is valid is for a decoder to say."""

    def __init__(self, opening: str) -> None:
        """``opening``: the character that the value begins with."""
        self._opening = opening
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self.has_begun = False
        self.is_broken = False  # it begins with something else

    def end_in(self, text: str) -> int | None:
        """The index after the value's last character; None where more has to come, or ``is_broken``."""
        for index, character in enumerate(text):
            if not self.has_begun:
                self._begin(character)
                if self.is_broken:
                    return None
            elif self._in_string:
                self._in_quotes(character)
            elif character == '"':
                self._in_string = True
            elif character in OPENING:
                self._depth += 1
            elif character in CLOSING:
                self._depth -= 1
                if self._depth == 0:
                    return index + 1
        return None

    def _begin(self, character: str) -> None:
        if character == self._opening:
            self.has_begun, self._depth = True, 1
        elif not character.isspace():
            self.is_broken = True

    def _in_quotes(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._in_string = False
