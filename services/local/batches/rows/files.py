"""Files of rows that prompts are made of: CSV, TSV, JSON lines, Parquet, and plain text with a prompt on each line."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from services.local.batches.rows.errors import RowsError
from services.local.batches.rows.parquet import parquet_columns, parquet_rows

TEXT_COLUMN = "text"  # the one column of plain text
MAX_FIELD_BYTES = 8 * 1024 * 1024  # the longest line of a batch, which a field becomes a part of
FORMAT_OF = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
FORMATS = ("csv", "tsv", "jsonl", "parquet", "text")
PARQUET_MARK = b"PAR1"
UNREAD = {  # how a file begins that would be taken for plain text
    rb"\x1f\x8b": "it is compressed; unpack it with gunzip first",
    rb"PK\x03\x04": "it is a spreadsheet or an archive; save its rows as CSV",
    rb"\[\s*\{": "it is one JSON array; write an object on each line (jq -c '.[]')",
}


@dataclass(frozen=True, slots=True)
class Row:
    """``line``: where it begins in its file, from 1; of Parquet, its number."""

    line: int
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowFile:
    """``name``: as people know it. It is read anew by each ``rows``, a row at a time."""

    path: Path
    format: str
    name: str

    def columns(self) -> list[str] | None:
        """In their order; None where each row has its own. Raises RowsError."""
        if self.format == "jsonl":
            return None
        if self.format == "text":
            return [TEXT_COLUMN]
        if self.format == "parquet":
            return parquet_columns(self.path, self.name)
        with self.path.open(encoding="utf-8-sig", newline="") as source, _NamedErrors(self):
            return _header(self.name, next(self._csv(source), []))

    def rows(self) -> Iterator[Row]:
        """Empty lines are no rows. Raises RowsError, which names the line."""
        read: dict[str, Callable[[], Iterator[Row]]] = {"jsonl": self._json_rows, "text": self._text_rows}
        return read.get(self.format, self._parquet_rows if self.format == "parquet" else self._csv_rows)()

    def _csv(self, source: Any) -> Any:
        csv.field_size_limit(MAX_FIELD_BYTES)
        return csv.reader(source, delimiter="\t" if self.format == "tsv" else ",", strict=True)

    def _csv_rows(self) -> Iterator[Row]:
        with self.path.open(encoding="utf-8-sig", newline="") as source, _NamedErrors(self) as place:
            reader = self._csv(source)
            columns = _header(self.name, next(reader, []))
            while True:
                place.line = line = reader.line_num + 1
                fields = next(reader, None)
                if fields is None:
                    return
                if fields and len(fields) != len(columns):
                    problem = f"{len(fields)} fields for {len(columns)} columns, {', '.join(columns)}"
                    raise RowsError(f"{self.name} line {line}: {problem}")
                if fields:
                    yield Row(line, dict(zip(columns, fields, strict=True)))

    def _json_rows(self) -> Iterator[Row]:
        decoder = msgspec.json.Decoder(dict[str, Any])
        with self.path.open("rb") as source:
            for line, data in enumerate(source, 1):
                if not data.strip():
                    continue
                try:
                    yield Row(line, decoder.decode(data.removeprefix(b"\xef\xbb\xbf") if line == 1 else data))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise RowsError(f"{self.name} line {line}: no JSON object: {error}") from error

    def _text_rows(self) -> Iterator[Row]:
        with self.path.open(encoding="utf-8-sig") as source, _NamedErrors(self) as place:
            for line, text in enumerate(source, 1):
                place.line = line
                if text := text.rstrip("\n"):
                    yield Row(line, {TEXT_COLUMN: text})

    def _parquet_rows(self) -> Iterator[Row]:
        for number, values in enumerate(parquet_rows(self.path, self.name), 1):
            yield Row(number, values)


def format_of(path: Path, name: str) -> str:
    """By the end of its name, else by how it begins; plain text where that says nothing. Raises RowsError."""
    known = FORMAT_OF.get(path.suffix.lower())
    if known is not None:
        return known
    with path.open("rb") as source:
        begins = source.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if begins.startswith(PARQUET_MARK):
        return "parquet"
    for mark, problem in UNREAD.items():
        if re.match(mark, begins):
            raise RowsError(f"{name} cannot be read: {problem}")
    return "jsonl" if begins.startswith(b"{") else "text"


class _NamedErrors:
    """Of one file that is read as text; ``line``: where the reader is."""

    def __init__(self, file: RowFile) -> None:
        self._name = file.name
        self.line = 1

    def __enter__(self) -> _NamedErrors:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, UnicodeDecodeError):
            raise RowsError(f"{self._name} from line {self.line} on: no UTF-8 text") from error
        if isinstance(error, csv.Error):
            raise RowsError(f"{self._name} line {self.line}: {error}") from error


def _header(name: str, fields: list[str]) -> list[str]:
    if not fields:
        raise RowsError(f"{name} is empty: its first line has to name the columns")
    twice = [field for place, field in enumerate(fields) if field in fields[:place]]
    if twice:
        raise RowsError(f"{name} line 1: two columns have the name {twice[0]!r}")
    return fields
