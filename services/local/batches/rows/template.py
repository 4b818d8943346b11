"""Prompts made of rows: ``Summarize: {text}``. Braces are escaped as Python's format strings have it, ``{{`` and
``}}``; a field is the plain name of a column, and nothing that could be looked up in a value or called."""

from __future__ import annotations

import string
from dataclasses import dataclass

from services.local.batches.rows.errors import RowsError
from services.local.batches.rows.files import Row
from services.local.batches.rows.values import text_of


@dataclass(frozen=True, slots=True)
class Template:
    """``parts``: literal text, and the column that follows it, if any."""

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Raises RowsError."""
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise RowsError(f"the template {text!r}: {error}; write {{{{ and }}}} for braces") from error
        for _, name, spec, conversion in parsed:
            if name is not None and (not name or spec or conversion or set(name) & set(".[]{}")):
                raise RowsError(
                    f"the template {text!r}: a field is the name of a column in braces, such as {{text}}, and nothing "
                    "else; write {{ and }} for braces"
                )
        return cls(tuple((literal, name) for literal, name, _, _ in parsed))

    @property
    def columns(self) -> list[str]:
        """Those that it needs, each once."""
        return list(dict.fromkeys(name for _, name in self.parts if name is not None))

    def render(self, row: Row, file_name: str) -> str:
        """Raises RowsError where the row has no such column."""
        pieces: list[str] = []
        for literal, name in self.parts:
            pieces.append(literal)
            if name is not None:
                if name not in row.values:
                    known = ", ".join(row.values) or "none"
                    raise RowsError(f"{file_name} line {row.line}: no column {name!r}; its columns are {known}")
                pieces.append(text_of(row.values[name]))
        return "".join(pieces)
