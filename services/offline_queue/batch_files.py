"""The output and error files of a batch that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import IO, BinaryIO, cast

from services.offline_queue.batch_lines import BatchLine, read_lines
from services.offline_queue.batch_progress import add_to, is_completed
from services.offline_queue.batch_records import ENDING, BatchCounts, BatchOutput
from services.offline_queue.batch_results import ResultWriter
from services.offline_queue.batch_spool import ResultSpool, temporary_file
from shared.bus import Bucket, Bus, Objects
from shared.protocol.messages import BatchRecord, FileRecord
from shared.tokenizer import Tokenizer

GROUP_LINES = 64
PURPOSE = "batch_output"


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """Writes each line of the input into exactly one of the two files, in the order of the input, from what the
    results stream holds. Memory is bounded whatever the batch's size. The file ids follow from the batch's id: a
    second run, after a kill in the middle of the first, replaces what the first one left."""

    bus: Bus
    files: Bucket[FileRecord]
    objects: Objects
    tokenizer: Tokenizer

    async def write(self, record: BatchRecord, now_s: int) -> BatchOutput:
        """Raises BusError; writing all again is safe."""
        with (
            await ResultSpool.read(self.bus, record.id) as spool,
            temporary_file() as output,
            temporary_file() as errors,
        ):
            pass_ = _Pass(ResultWriter(record, ENDING[record.status], self.tokenizer), spool, output, errors)
            async for group in _groups(read_lines(self.objects, record.id)):
                await asyncio.to_thread(pass_.write, group)
            return BatchOutput(
                output_file_id=await self._store(record, "output", output, now_s),
                error_file_id=await self._store(record, "error", errors, now_s),
                counts=pass_.counts,
            )

    async def _store(self, record: BatchRecord, kind: str, content: IO[bytes], now_s: int) -> str | None:
        file_id = f"file-{record.id.removeprefix('batch_')}-{kind}"
        size = content.tell()
        if not size:
            await self.files.delete(file_id)
            await self.objects.delete(file_id)
            return None
        content.seek(0)
        await self.objects.put(file_id, cast(BinaryIO, content))
        file = FileRecord(file_id, size, now_s, f"{record.id}_{kind}.jsonl", PURPOSE)
        await self.files.put(file_id, file)
        return file_id


class _Pass:
    """One pass over the lines of a batch."""

    def __init__(self, writer: ResultWriter, spool: ResultSpool, output: IO[bytes], errors: IO[bytes]) -> None:
        self._writer = writer
        self._spool = spool
        self._output = output
        self._errors = errors
        self.counts = BatchCounts()

    def write(self, group: list[BatchLine]) -> None:
        for line in group:
            result = self._spool.get(line.line)
            if is_completed(result):
                self._output.write(self._writer.output_line(line, result))
            else:
                self._errors.write(self._writer.error_line(line, result))
            self.counts = add_to(self.counts, result, line.num_prompt_tokens)


async def _groups(lines: AsyncIterator[BatchLine]) -> AsyncIterator[list[BatchLine]]:
    group: list[BatchLine] = []
    async for line in lines:
        group.append(line)
        if len(group) == GROUP_LINES:
            yield group
            group = []
    if group:
        yield group
