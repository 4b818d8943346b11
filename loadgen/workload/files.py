"""Input files line by line, gzip or plain, with line numbers for the errors."""

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO, TypeVar, cast

import msgspec

from loadgen.errors import TraceError

Row = TypeVar("Row")

GZIP_MAGIC = b"\x1f\x8b"


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """The file as UTF-8 text with line ends kept as they are; gzip is recognised by its first bytes. Raises TraceError
    when the file is not there, is not readable, is a pipe, or is not UTF-8 or gzip inside."""
    if path.is_fifo():
        raise TraceError(f"{path}: a pipe cannot be read twice, as it has to be: write it to a file")
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == GZIP_MAGIC
        binary = cast(BinaryIO, gzip.open(path)) if is_gzip else path.open("rb")  # noqa: SIM115 (closed by text)
        with io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as text:
            yield text
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 text ({error.reason})") from error


def numbered_lines(file: TextIO) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, stripped, with their numbers from 1."""
    for number, line in enumerate(file, start=1):
        if stripped := line.strip():
            yield number, stripped


def json_rows(path: Path, kind: type[Row]) -> Iterator[tuple[int, Row]]:
    """The line's number and its JSON, of this type. Raises TraceError."""
    decoder = msgspec.json.Decoder(kind)
    with open_text(path) as file:
        for number, line in numbered_lines(file):
            with errors_named(path, number):
                row = decoder.decode(line)
            yield number, row


def csv_rows(path: Path, kind: type[Row]) -> Iterator[tuple[int, Row]]:
    """The line on which each row ends, and the row by its columns' names in small letters, as this type: numbers are
    text that says them. Raises TraceError."""
    with open_text(path) as file:
        reader = csv.reader(file, skipinitialspace=True)
        header: list[str] = []
        try:
            for row in filter(None, reader):
                if not header:
                    header = [name.strip().lower() for name in row]
                    continue
                with errors_named(path, reader.line_num):
                    if len(row) < len(header):
                        raise ValueError(f"{len(row)} fields instead of {len(header)}")
                    named = zip(header, row, strict=False)
                    made = msgspec.convert(dict(named), kind, strict=False)
                yield reader.line_num, made
        except csv.Error as error:
            raise TraceError(f"{path}, line {reader.line_num}: {error}") from error


@contextmanager
def errors_named(path: Path, number: int) -> Iterator[None]:
    """A ValueError as a TraceError of this line; one of msgspec is a ValueError. So is what is nested too deeply, and a
    number beyond what a float or a time has."""
    try:
        yield
    except (ValueError, OverflowError, RecursionError) as error:
        raise TraceError(f"{path}, line {number}: {error}") from error


def first_line(path: Path) -> str:
    """The first line that is not blank; raises TraceError when there is none."""
    with open_text(path) as file:
        for _, line in numbered_lines(file):
            return line
    raise TraceError(f"{path}: the file is empty")
