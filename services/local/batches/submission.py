"""From a file to batches at a server. Rows are cut into batches, all of one job; what a crash leaves out is submitted
with the job's id, and nothing is submitted twice."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from services.local.batches.batch import (
    DIGEST,
    FIELDS,
    FIRST_ROW,
    JOB,
    NUM_ROWS,
    PART,
    PARTS,
    counts_of,
    metadata_of,
    parts_of,
)
from services.local.batches.requests import Part, RequestMaker, cut
from services.local.batches.rows.files import RowFile
from services.local.batches.spool import temporary_file
from services.local.batches.telling import Patience, Telling
from services.local.commands.server import ApiClient, Json
from shared.errors import ApiError

TELL_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Submission:
    """What batches are made with. ``metadata``: the client's own."""

    client: ApiClient
    telling: Telling
    endpoint: str
    window: str
    metadata: dict[str, str]

    def file(self, source: BinaryIO, name: str, metadata: dict[str, str]) -> Json:
        """The batch of a file of requests. Raises ApiError."""
        return self._create(self._upload(source, name), uuid.uuid4().hex, metadata)

    def parts(self, maker: RequestMaker, file: RowFile, max_lines: int) -> list[Part]:
        """The batches that the rows are cut into; all rows are looked at, and nothing is sent. Raises RowsError."""
        what = f"checking {file.name}"
        self.telling.begin(what)

        def tell(number: int) -> None:
            if number % TELL_ROWS == 0:
                self.telling.update(what, number)

        return cut(maker.lines(file), max_lines, tell)

    def rows(self, job_id: str, parts: list[Part], maker: RequestMaker, file: RowFile, resumed: bool) -> list[Json]:
        """The job's batches, one for each part. ``resumed``: some may be there. Raises RowsError and ApiError."""
        there = parts_of(self.client, job_id) if resumed else {}
        _require_same(job_id, parts, there)
        num_rows = sum(part.num_rows for part in parts)
        self.telling.begin(f"submitting {job_id}", num_rows)
        lines, batches = maker.lines(file), []
        for number, part in enumerate(parts, 1):
            with _spooled(lines, part, keep=number not in there) as spool:
                batches.append(there.get(number) or self._part(job_id, number, len(parts), part, spool, file.name))
            done, facts = part.first + part.num_rows - 1, f"{number} of {len(parts)} batches"
            self.telling.update(f"submitting {job_id}", done, num_rows, facts)
        return batches

    def _part(self, job_id: str, number: int, num_parts: int, part: Part, spool: BinaryIO, name: str) -> Json:
        own = {JOB: job_id, PART: str(number), PARTS: str(num_parts), DIGEST: part.digest}
        own |= {FIRST_ROW: str(part.first), NUM_ROWS: str(part.num_rows)}
        file_id = self._upload(spool, f"{Path(name).stem}-{number}.jsonl")
        return self._create(file_id, f"{job_id}-{number}", self.metadata | own)

    def _upload(self, source: BinaryIO, name: str) -> str:
        def upload() -> Json:
            source.seek(0)
            return self.client.upload_from(source, name, "batch")

        return str(Patience(self.telling).ask(upload)["id"])

    def _create(self, file_id: str, key: str, metadata: dict[str, str]) -> Json:
        """``key``: asked for again, it is the same batch."""
        body: Json = {"input_file_id": file_id, "endpoint": self.endpoint, "completion_window": self.window}
        if metadata:
            body["metadata"] = metadata
        headers = {"Idempotency-Key": key}
        return Patience(self.telling).ask(lambda: self.client.post("/v1/batches", body, headers, FIELDS))


def _require_same(job_id: str, parts: list[Part], there: dict[int, Json]) -> None:
    """Raises ApiError where batches of the job were made of other rows."""
    for number, batch in there.items():
        if number > len(parts) or metadata_of(batch)[DIGEST] != parts[number - 1].digest:
            raise ApiError(f"the rows or the options are not those of {job_id}: batch {batch['id']} has other requests")
        if batch["status"] == "failed" and not counts_of(batch)["total"]:
            look = f"see slackwater batch get {batch['id']}"
            raise ApiError(f"{job_id} cannot go on: batch {batch['id']} has failed; {look}")


def _spooled(lines: Iterator[bytes], part: Part, keep: bool) -> BinaryIO:
    """The next lines, those of the part, as a file; an empty one where they are only passed over. Raises ApiError where
    they have changed since they were looked at."""
    spool = temporary_file()
    read = Part(part.first)
    for _ in range(part.num_rows):
        line = next(lines, b"")
        read.add(line)
        if keep:
            spool.write(line)
    if read.digest != part.digest:
        spool.close()
        raise ApiError("the rows have changed while they were submitted")
    return spool
