"""Files that answers are written to: CSV, TSV, JSON lines and Parquet, by the end of their name."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from services.local.batches.rows.errors import RowsError
from services.local.batches.rows.files import FORMAT_OF, RowFile
from services.local.batches.rows.parquet import ParquetTable, parquet_schema, require_pyarrow
from services.local.batches.rows.values import text_of
from services.local.commands.server import whole_file

KINDS = (bool, int, float, str)  # of Parquet's columns; what is none of these, or of several, is text
INT64 = range(-(2**63), 2**63)  # an integer beyond it is text too

Values = dict[str, Any]


class Table(Protocol):
    """It is whole once it is closed."""

    def write(self, values: Values) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Columns:
    """Those of the rows in their order, and of what kind each is; ``schema``: pyarrow's, of rows that are Parquet."""

    kinds: dict[str, type]
    schema: Any | None = None

    @classmethod
    def of(cls, file: RowFile) -> Columns:
        """Reads all rows where each may have columns of its own. Raises RowsError."""
        named = file.columns()
        if named is None:
            return cls(_kinds(row.values for row in file.rows()))
        schema = parquet_schema(file.path, file.name) if file.format == "parquet" else None
        return cls(dict.fromkeys(named, str), schema)


def table_format(path: Path) -> str | None:
    """None where the name tells of no table."""
    known = FORMAT_OF.get(path.suffix.lower())
    return None if known == "text" else known


def require_format(path: Path) -> None:
    """Raises RowsError where answers cannot be written beside rows to a file of that name."""
    found = table_format(path)
    if found is None:
        raise RowsError(f"{path}: the end of its name has to tell how to write it: .csv, .tsv, .jsonl or .parquet")
    if found == "parquet":
        require_pyarrow()


@contextmanager
def table_at(path: Path, columns: Columns, more: Sequence[str], replace: bool) -> Iterator[Table]:
    """Its file has its name once all is written. ``more``: columns of text that follow. Raises OSError and
    RowsError."""
    format, names = table_format(path), [*columns.kinds, *more]
    with whole_file(path, replace) as sink, ExitStack() as at_end:
        table: Table
        if format == "parquet":
            table = ParquetTable(sink, columns.schema, columns.kinds, list(more))
            at_end.callback(table.let_go)
        else:
            table = _JsonTable(sink) if format == "jsonl" else _CsvTable(sink, names, "\t" if format == "tsv" else ",")
        yield table
        table.close()


class _CsvTable:
    def __init__(self, sink: BinaryIO, names: list[str], delimiter: str) -> None:
        self._text = io.TextIOWrapper(sink, encoding="utf-8", newline="", write_through=False)
        self._names = names
        self._writer = csv.writer(self._text, delimiter=delimiter)  # quotes what its line ends, \r\n, are made of
        self._writer.writerow(names)

    def write(self, values: Values) -> None:
        self._writer.writerow([text_of(values.get(name)) for name in self._names])

    def close(self) -> None:
        self._text.flush()
        self._text.detach()


class _JsonTable:
    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink

    def write(self, values: Values) -> None:
        self._sink.write(msgspec.json.encode(values) + b"\n")

    def close(self) -> None:
        self._sink.flush()


def _kinds(rows: Iterable[Values]) -> dict[str, type]:
    """Of each column, in the order in which they first come."""
    kinds: dict[str, type] = {}
    for values in rows:
        for name, value in values.items():
            own = _kind_of(value)
            before = kinds.get(name)
            if before is None:
                kinds[name] = own if value is not None else type(None)
            elif value is not None and before is not own:
                kinds[name] = _wider(before, own)
    return {name: str if kind is type(None) else kind for name, kind in kinds.items()}


def _kind_of(value: Any) -> type:
    kind = type(value)
    return kind if kind in KINDS and (kind is not int or value in INT64) else str


def _wider(one: type, other: type) -> type:
    if one is type(None):
        return other
    return float if {one, other} == {int, float} else str
