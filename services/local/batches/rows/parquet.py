"""Parquet files, where pyarrow is installed. They are read and written some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from services.local.batches.rows.errors import RowsError
from services.local.batches.rows.values import text_of

GROUP_ROWS = 1024  # read at a time
ROW_GROUP_ROWS = 16 * 1024  # written at a time
NEEDS_PYARROW = "Parquet needs pyarrow: pip install 'slackwater[parquet]'"

Kinds = Mapping[str, type]  # of columns: str, bool, int or float


def parquet_columns(path: Path, name: str) -> list[str]:
    """Raises RowsError."""
    with _opened(path, name) as file:
        return list(file.schema_arrow.names)


def parquet_rows(path: Path, name: str) -> Iterator[dict[str, Any]]:
    """Raises RowsError."""
    with _opened(path, name) as file:
        groups = file.iter_batches(batch_size=GROUP_ROWS)
        while (group := _next_group(groups, name)) is not None:
            yield from group.to_pylist()


def parquet_schema(path: Path, name: str) -> Any:
    """pyarrow's, of the file. Raises RowsError."""
    with _opened(path, name) as file:
        return file.schema_arrow


class ParquetTable:
    """Rows that are written to ``sink``; their columns are those of ``base``, a schema of pyarrow's, or ``kinds``, and
    then ``texts``."""

    def __init__(self, sink: BinaryIO, base: Any | None, kinds: Kinds, texts: list[str]) -> None:
        pa = _pyarrow()
        type_of = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
        own = list(base) if base is not None else [pa.field(name, type_of[kind]) for name, kind in kinds.items()]
        self._schema = pa.schema([*own, *(pa.field(name, pa.string()) for name in texts)])
        own_kinds = {} if base is not None else kinds
        self._texts = [name for name, kind in own_kinds.items() if kind is str]
        self._floats = [name for name, kind in own_kinds.items() if kind is float]
        self._pa = pa
        self._writer = pa.parquet.ParquetWriter(sink, self._schema)
        self._rows: list[dict[str, Any]] = []

    def write(self, values: dict[str, Any]) -> None:
        """What is no text and stands in a column of text is written as JSON has it."""
        texts = {name: text_of(values[name]) for name in self._texts if values.get(name) is not None}
        floats = {name: float(values[name]) for name in self._floats if values.get(name) is not None}
        self._rows.append(values | texts | floats)
        if len(self._rows) == ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def let_go(self) -> None:
        """Of ``sink``, also where it was not closed: pyarrow would write to it when it likes."""
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(self._pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []


def require_pyarrow() -> None:
    """Raises RowsError where it is not installed."""
    _pyarrow()


@contextmanager
def _opened(path: Path, name: str) -> Iterator[Any]:
    pa = _pyarrow()
    try:
        file = pa.parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise RowsError(f"{name} cannot be read as Parquet: {error}") from error
    with file:
        yield file


def _next_group(groups: Iterator[Any], name: str) -> Any | None:
    """Raises RowsError."""
    try:
        return next(groups, None)
    except (_pyarrow().ArrowException, OSError) as error:
        raise RowsError(f"{name} cannot be read as Parquet: {error}") from error


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise RowsError(NEEDS_PYARROW) from error
    return pyarrow
