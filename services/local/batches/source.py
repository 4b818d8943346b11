"""What ``batch submit`` is given: a file, or what stands on stdin, which is kept until its answers are written."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
import typer

from services.local.batches.options import require_writable
from services.local.batches.rows.files import RowFile, format_of

STDIN = "-"
REQUEST_FIELDS = ("custom_id", "method", "url", "body")


@dataclass(slots=True)
class Source:
    """``is_needed``: a copy stays, since its rows were sent, and their answers are not written beside them yet.
    ``is_passing``: the copy is gone when the command ends, whatever happens."""

    path: Path
    name: str
    is_needed: bool = False
    is_passing: bool = False

    def rows(self, format: str | None) -> RowFile:
        return RowFile(self.path, format or format_of(self.path, self.name), self.name)

    def first_request(self) -> dict[str, object] | None:
        """Empty where the first line is no JSON object, for the server to judge; None where it is an object of another
        kind than a request: a row."""
        with self.path.open("rb") as lines:
            first = next((line for line in lines if line.strip()), b"")
        try:
            found = msgspec.json.decode(first.removeprefix(b"\xef\xbb\xbf"), type=dict[str, object])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return {}
        return None if found and not any(name in found for name in REQUEST_FIELDS) else found


@contextmanager
def source_of(path: Path, output: Path | None, force: bool) -> Iterator[Source]:
    """What can be read once alone is copied: beside ``output``, if any, so that the rows are not lost whatever happens.
    Raises BadParameter where it cannot be written there."""
    if path.is_file() and str(path) != STDIN:
        yield Source(path, path.name)
    elif output is None or (output.exists() and not output.is_file()):
        with tempfile.NamedTemporaryFile(prefix="slackwater-") as copy:
            _copy(path, copy.file)
            yield Source(Path(copy.name), _name_of(path), is_passing=True)
    else:
        kept = output.with_name(f"{output.name}.stdin")
        require_writable(output, kept, force=force)
        source = Source(kept, _name_of(path))
        try:
            with kept.open("wb") as sink:
                _copy(path, sink)
            yield source
        finally:
            if not source.is_needed:
                kept.unlink(missing_ok=True)


def require_readable(path: Path) -> Path:
    """Raises BadParameter where there is nothing to read."""
    if str(path) != STDIN and not path.exists():
        raise typer.BadParameter(f"file {str(path)!r} does not exist")
    if path.is_dir():
        raise typer.BadParameter(f"{str(path)!r} is a folder")
    return path


def _copy(path: Path, sink: IO[bytes]) -> None:
    if str(path) == STDIN:
        shutil.copyfileobj(sys.stdin.buffer, sink)
    else:
        with path.open("rb") as source:
            shutil.copyfileobj(source, sink)
    sink.flush()


def _name_of(path: Path) -> str:
    return "stdin" if str(path) == STDIN else path.name
