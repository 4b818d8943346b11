"""The lines of a batch's input that rows become, and the batches that they are cut into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from services.local.batches.rows.errors import RowsError
from services.local.batches.rows.files import RowFile
from services.local.batches.rows.template import Template

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
ENDPOINTS = (CHAT, TEXT, RESPONSES, EMBEDDINGS)  # what a batch's lines may ask for
MAX_LINE_BYTES = 8 * 1024 * 1024  # the server's, of a line
MAX_PART_LINES = 50_000  # OpenAI's, of a batch
MAX_PART_BYTES = 128 * 1024 * 1024  # below the server's 200 MB
ROW_ID = "row-"  # a line's custom_id, before the number of its row

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMaker:
    """Makes a line of each row. ``body``: what all requests have."""

    endpoint: str
    prompt: Template
    system: Template | None
    body: dict[str, Any]

    @property
    def columns(self) -> list[str]:
        """That each row needs."""
        return [*self.prompt.columns, *(self.system.columns if self.system else ())]

    def lines(self, file: RowFile) -> Iterator[bytes]:
        """One for each row, in their order, with its newline. Raises RowsError."""
        for number, row in enumerate(file.rows(), 1):
            prompt = self.prompt.render(row, file.name)
            system = self.system.render(row, file.name) if self.system else None
            written = {"custom_id": f"{ROW_ID}{number}", "method": "POST", "url": self.endpoint}
            data = _encoder.encode(written | {"body": self.body | self._prompted(prompt, system)}) + b"\n"
            if len(data) > MAX_LINE_BYTES:
                raise RowsError(f"{file.name} line {row.line}: its request is longer than {MAX_LINE_BYTES:,} bytes")
            yield data

    def _prompted(self, prompt: str, system: str | None) -> dict[str, Any]:
        if self.endpoint == TEXT:
            return {"prompt": prompt}
        if self.endpoint == EMBEDDINGS:
            return {"input": prompt}
        if self.endpoint == RESPONSES:
            return {"input": prompt} | ({} if system is None else {"instructions": system})
        before = [] if system is None else [{"role": "system", "content": system}]
        return {"messages": [*before, {"role": "user", "content": prompt}]}


@dataclass(slots=True)
class Part:
    """Rows of one batch: ``first`` is its first row's number, from 1."""

    first: int
    num_rows: int = 0
    num_bytes: int = 0
    _hash: Any = field(default_factory=lambda: blake2b(digest_size=16), repr=False)

    def takes(self, line: bytes, max_lines: int) -> bool:
        return self.num_rows < max_lines and (not self.num_rows or self.num_bytes + len(line) <= MAX_PART_BYTES)

    def add(self, line: bytes) -> None:
        self.num_rows += 1
        self.num_bytes += len(line)
        self._hash.update(line)

    @property
    def digest(self) -> str:
        """Of all its lines."""
        value: str = self._hash.hexdigest()
        return value


def cut(lines: Iterator[bytes], max_lines: int, tell: Callable[[int], None]) -> list[Part]:
    """The batches that the lines make, which are looked at and not kept; ``tell`` is called with how many there were
    so far. Raises RowsError where there is none."""
    parts: list[Part] = []
    for number, line in enumerate(lines, 1):
        if not parts or not parts[-1].takes(line, max_lines):
            parts.append(Part(number))
        parts[-1].add(line)
        tell(number)
    if not parts:
        raise RowsError("there are no rows")
    return parts
