"""What the results of batches are written to: one file, and of results as the API has them another for failed lines."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from services.local.batches.options import error_path, require_other, require_writable
from services.local.batches.results import (
    Chains,
    Written,
    remove_left_over,
    require_columns,
    write_alone,
    write_beside,
    write_raw,
)
from services.local.batches.rows.files import RowFile
from services.local.batches.rows.tables import Columns, require_format, table_format
from services.local.commands.server import ApiClient, Json
from shared.errors import ApiError


@dataclass(frozen=True, slots=True)
class AnswerFiles:
    """``output``: None where nothing is written. ``force``: replace what is there."""

    output: Path | None
    force: bool

    def require(self, rows: RowFile | None, requests: Path | None = None) -> None:
        """Before anything is sent. ``requests``: the file that they are read from. Raises BadParameter and RowsError
        where answers could not be written, or would take the place of the requests."""
        if self.output is None:
            return
        is_raw = rows is None and not self.is_table
        paths = [self.output, error_path(self.output)] if is_raw else [self.output]
        require_writable(*paths, force=self.force)
        if rows is None and requests is not None:
            require_other(requests, *paths)
        if rows is not None:
            require_format(self.output)
            require_columns(rows, Columns.of(rows))

    def write(self, client: ApiClient, chains: Chains, rows: RowFile | None) -> Written | None:
        """Beside their rows, or alone, or as the API has them. None where nothing was to be written. Raises ApiError
        and RowsError."""
        if self.output is None:
            return None
        try:
            if rows is not None:
                written = write_beside(client, chains, rows, self.output, self.force)
            elif self.is_table:
                written = write_alone(client, chains, self.output, self.force)
            else:
                written = write_raw(client, chains, self.output, error_path(self.output), self.force)
                if written.failed:
                    print(f"failed lines: {error_path(self.output)}", file=sys.stderr)
        except OSError as error:
            raise ApiError(f"cannot write {error.filename or self.output}: {error.strerror}") from error
        if written.done or rows is not None:
            print(f"results: {self.output}", file=sys.stderr)
        return written

    def fetch(self, client: ApiClient, batch: Json) -> int:
        """A batch's own files as they are; how many there were. Raises ApiError."""
        if self.output is None:
            return 0
        files = ("output_file_id", "results", self.output), ("error_file_id", "failed lines", error_path(self.output))
        there = [(batch[field], what, path) for field, what, path in files if batch.get(field)]
        for file_id, what, path in there:
            try:
                client.download(file_id, path, replace=self.force)
            except OSError as error:
                raise ApiError(f"cannot write {path}: {error.strerror}") from error
            print(f"{what}: {path}", file=sys.stderr)
        if self.force:
            try:
                remove_left_over(path for field, _, path in files if not batch.get(field))
            except OSError as error:
                raise ApiError(f"cannot remove {error.filename}: {error.strerror}") from error
        return len(there)

    @property
    def is_table(self) -> bool:
        """Of rows, and not of lines as the API has them."""
        return self.output is not None and table_format(self.output) in ("csv", "tsv", "parquet")
