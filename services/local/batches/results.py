"""Answers beside the rows that they were asked for, in the rows' order; and results as the API has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from services.local.batches.answers import ANSWER_COLUMNS, BatchAnswers, input_lines
from services.local.batches.batch import FIRST_ROW, NUM_ROWS, PART, PARTS, counts_of, metadata_of
from services.local.batches.requests import ROW_ID
from services.local.batches.rows.errors import RowsError
from services.local.batches.rows.files import Row, RowFile
from services.local.batches.rows.tables import Columns, Table, table_at
from services.local.commands.server import ApiClient, Json, whole_file

CUSTOM_ID = "custom_id"  # the column that stands for the rows where they are not at hand

Chains = list[list[Json]]  # of each batch in the order of its rows, the batch and its retries


def require_columns(file: RowFile, columns: Columns | None = None) -> None:
    """Raises RowsError where the rows have columns that answers are written to."""
    names = file.columns() or (columns.kinds if columns is not None else ())
    taken = [name for name in ANSWER_COLUMNS if name in names]
    if taken:
        raise RowsError(f"{file.name} has columns of its own with the names {', '.join(taken)}; rename them")


@dataclass(slots=True)
class Written:
    """How many lines have an answer, and how many have none."""

    done: int = 0
    failed: int = 0

    def count(self, is_done: bool) -> None:
        self.done += is_done
        self.failed += not is_done


def write_beside(client: ApiClient, chains: Chains, file: RowFile, output: Path, replace: bool) -> Written:
    """Each row of the batches with its answer. Raises ApiError, RowsError and OSError."""
    columns = Columns.of(file)
    require_columns(file, columns)
    rows, num_read, written = iter(file.rows()), 0, Written()
    with table_at(output, columns, ANSWER_COLUMNS, replace) as table:
        for chain in chains:
            first, num_rows = _rows_of(chain)
            before = sum(1 for _ in islice(rows, first - 1 - num_read))
            with BatchAnswers.fetched(client, chain) as answers:
                own = _write(table, answers, enumerate(islice(rows, num_rows), first), written)
            if before + own < first - 1 - num_read + num_rows:
                raise RowsError(f"{file.name} has fewer rows than were submitted; is it another file?")
            num_read += before + own
        if _are_all(chains) and next(rows, None) is not None:
            raise RowsError(f"{file.name} has more rows than were submitted; is it another file?")
    return written


def write_alone(client: ApiClient, chains: Chains, output: Path, replace: bool) -> Written:
    """Each line by its custom_id with its answer, in the order of the input. Raises ApiError, RowsError and OSError."""
    written = Written()
    with table_at(output, Columns({CUSTOM_ID: str}), ANSWER_COLUMNS, replace) as table:
        for chain in chains:
            with BatchAnswers.fetched(client, chain) as answers:
                for custom_id in answers.in_order():
                    table.write({CUSTOM_ID: custom_id} | answers.get(custom_id).columns())
                    written.count(answers.is_done(custom_id))
    return written


def write_raw(client: ApiClient, chains: Chains, output: Path, errors: Path, replace: bool) -> Written:
    """Lines as the API has them, in the order of the input: answers, and beside them what failed, where something has.
    Raises ApiError and OSError."""
    written = Written()
    with ExitStack() as files:
        sinks: dict[Path, BinaryIO] = {}
        for chain in chains:
            with BatchAnswers.fetched(client, chain) as answers:
                for custom_id in answers.in_order():
                    is_done = answers.is_done(custom_id)
                    path = output if is_done else errors
                    if path not in sinks:
                        sinks[path] = files.enter_context(whole_file(path, replace))
                    sinks[path].write(answers.raw(custom_id))
                    written.count(is_done)
    if replace:
        remove_left_over(path for path in (output, errors) if path not in sinks)
    return written


def remove_left_over(paths: Iterable[Path]) -> None:
    """Files of an earlier run for which there is nothing now; what is no regular file stays. Raises OSError."""
    for path in paths:
        if path.is_file():
            path.unlink()


def unanswered(client: ApiClient, chain: list[Json]) -> Iterator[bytes]:
    """The requests of a batch that have no answer, neither in it nor in its retries. Raises ApiError."""
    with BatchAnswers.fetched(client, chain) as answers:
        for custom_id, line in input_lines(client, chain[0]):
            if not answers.is_done(custom_id):
                yield line


def _write(table: Table, answers: BatchAnswers, rows: Iterator[tuple[int, Row]], written: Written) -> int:
    """How many rows there were."""
    num_rows = 0
    for number, row in rows:
        custom_id = f"{ROW_ID}{number}"
        table.write(row.values | answers.get(custom_id).columns())
        written.count(answers.is_done(custom_id))
        num_rows += 1
    return num_rows


def _rows_of(chain: list[Json]) -> tuple[int, int]:
    """The first row of a batch, and how many it has."""
    metadata = metadata_of(chain[0])
    return int(metadata.get(FIRST_ROW, 1)), int(metadata.get(NUM_ROWS, counts_of(chain[0])["total"]))


def _are_all(chains: Chains) -> bool:
    """Their rows go on to the last of the file."""
    metadata = metadata_of(chains[-1][0])
    return metadata.get(PART) == metadata.get(PARTS)
