"""Input files line by line, gzip or plain, with line numbers for the errors."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from loadgen.errors import TraceError

GZIP_MAGIC = b"\x1f\x8b"


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """The file as UTF-8 text with line ends kept as they are; gzip is recognised by its first bytes.

    Raises TraceError when the file is not there, is not readable, or is not UTF-8 or gzip inside.
    """
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == GZIP_MAGIC
        binary = cast(BinaryIO, gzip.open(path)) if is_gzip else path.open("rb")  # noqa: SIM115 (closed by text)
        with io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as text:
            yield text
    except (OSError, EOFError) as error:
        raise TraceError(f"{path}: {_reason(error)}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 text ({error.reason})") from error


def numbered_lines(file: TextIO) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, stripped, with their numbers from 1."""
    for number, line in enumerate(file, start=1):
        if stripped := line.strip():
            yield number, stripped


def numbered_rows(file: TextIO, path: Path) -> Iterator[tuple[int, list[str]]]:
    """CSV rows that are not blank, with the number of the line on which each ends. Raises TraceError."""
    reader = csv.reader(file)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise TraceError(f"{path}, line {reader.line_num}: {error}") from error


def first_line(path: Path) -> str:
    """The first line that is not blank; raises TraceError when there is none."""
    with open_text(path) as file:
        for _, line in numbered_lines(file):
            return line
    raise TraceError(f"{path}: the file is empty")


def _reason(error: OSError | EOFError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
