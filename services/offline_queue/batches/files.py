"""The output and error files of a batch, which grow as results come."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import msgspec

from services.offline_queue.batches.lines import split_lines
from services.offline_queue.batches.progress import add_to, is_completed
from services.offline_queue.batches.records import ENDING, BatchCounts, BatchOutput
from services.offline_queue.batches.results import ResultWriter
from services.offline_queue.batches.spool import LineSpool
from shared.bus import Bucket, Bus, GrowingObject, Objects
from shared.protocol import subjects
from shared.protocol.batches import BatchRecord, FileObject
from shared.protocol.offline import OfflineResult
from shared.text.tokenizer import Tokenizer

GROUP_LINES = 128
IN_OUTPUT, IN_ERRORS = 1, 2
PURPOSE = "batch_output"


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """What the files of all batches need."""

    bus: Bus
    files: Bucket[FileObject]
    objects: Objects
    tokenizer: Tokenizer

    async def open(self, record: BatchRecord) -> BatchOutputs:
        """As an earlier process left them, or empty. Raises NotFoundOnBusError and BusError."""
        outputs = BatchOutputs(self, record, await LineSpool.read(self.objects, record.id))
        try:
            await outputs.recover()
        except BaseException:
            outputs.close()
            raise
        return outputs


class BatchOutputs:
    """Each line of the input goes into exactly one of the two files, when its result is there; what is in the files is
    the memory of that, so a kill between any two writes changes nothing. The file ids follow from the batch's id, and
    their time of creation is the batch's, as the ids say. Until the batch has ended the files are shown, and nothing
    refers to them. Memory is bounded whatever the batch's size.
    """

    def __init__(self, shared: BatchFiles, record: BatchRecord, lines: LineSpool) -> None:
        self._shared = shared
        self._record = record
        self._lines = lines
        self._written = bytearray(lines.end)
        stem = f"file-{record.id.removeprefix('batch_')}"
        self._output = shared.objects.growing(f"{stem}-output")
        self._errors = shared.objects.growing(f"{stem}-error")

    async def recover(self) -> None:
        """Learn which lines are in the files, and show them: a kill may have come between a piece and its record, and
        what no record names is swept away. Raises BusError."""
        for file, place in ((self._output, IN_OUTPUT), (self._errors, IN_ERRORS)):
            async for _, data in split_lines(file.recover()):
                self._written[_line_of(_id_decoder.decode(data).id, "_")] = place
            if file.size:
                await file.describe()
                await self._show(file, None)

    async def add(self, results: list[OfflineResult]) -> None:
        """Write those that are not written yet. Raises BusError; then a new instance has to recover."""
        writer = ResultWriter(self._record, "", self._shared.tokenizer)
        for start in range(0, len(results), GROUP_LINES):
            group = results[start : start + GROUP_LINES]
            await self._append(await asyncio.to_thread(self._render, group, writer))

    async def finish(self, record: BatchRecord, now_s: int) -> BatchOutput:
        """Write what is missing: results that nobody has told of, and of each line without one, why. ``record`` is in
        the state that its work ended in. Raises BusError; a new instance may finish again."""
        has_result = bytearray(len(self._written))
        counts = await self._add_stored(has_result)
        writer = ResultWriter(record, ENDING[record.status], self._shared.tokenizer)
        for start in range(0, self._lines.end, GROUP_LINES):
            numbers = range(start, min(start + GROUP_LINES, self._lines.end))
            lines = [line for number in numbers if not has_result[number] and (line := self._lines.get(number))]
            counts = replace(counts, failed=counts.failed + len(lines))
            missing = [line for line in lines if not self._written[line.line]]
            errors = b"".join([writer.error_line(line, None) for line in missing])
            await self._append(_Rendered(b"", errors, [], [line.line for line in missing]))
        return BatchOutput(await self._close(self._output, now_s), await self._close(self._errors, now_s), counts)

    def close(self) -> None:
        """Let go of the temporary file."""
        self._lines.close()

    async def _add_stored(self, has_result: bytearray) -> BatchCounts:
        """All results of the stream. What was written as unfinished before its result came stays so."""
        counts, group = BatchCounts(), []
        subject = subjects.batch_results(self._record.id)
        async for stored in self._shared.bus.read(subjects.RESULTS_STREAM, subject, OfflineResult, fetch=GROUP_LINES):
            result = stored.message
            number = _line_of(result.request_id, ".")
            line = self._lines.get(number)
            if line is None:
                continue
            has_result[number] = True
            told = None if self._written[number] == IN_ERRORS else result
            counts = add_to(counts, told, line.num_prompt_tokens)
            group.append(result)
            if len(group) == GROUP_LINES:
                await self.add(group)
                group = []
        await self.add(group)
        return counts

    def _render(self, results: list[OfflineResult], writer: ResultWriter) -> _Rendered:
        rendered, seen = _Rendered(), set[int]()
        for result in results:
            number = _line_of(result.request_id, ".")
            line = self._lines.get(number)
            if line is None or self._written[number] or number in seen:
                continue
            seen.add(number)
            if is_completed(result):
                rendered.output += writer.output_line(line, result)
                rendered.in_output.append(number)
            else:
                rendered.errors += writer.error_line(line, result)
                rendered.in_errors.append(number)
        return rendered

    async def _append(self, rendered: _Rendered) -> None:
        for file, data, numbers, place in (
            (self._output, rendered.output, rendered.in_output, IN_OUTPUT),
            (self._errors, rendered.errors, rendered.in_errors, IN_ERRORS),
        ):
            if data:
                await file.append(bytes(data))
                await self._show(file, None)
                for number in numbers:
                    self._written[number] = place

    async def _close(self, file: GrowingObject, now_s: int) -> str | None:
        """The file as it stays; one without lines does not exist. Raises BusError where somebody has deleted it since
        its last line: its results are still in the stream, and a new instance writes them again."""
        if not file.size:
            await self._shared.files.delete(file.name)
            await self._shared.objects.delete(file.name)
            return None
        await file.check()
        await file.describe()
        lifetime_s = self._record.output_expires_after_s
        await self._show(file, None if lifetime_s is None else now_s + lifetime_s)
        return file.name

    async def _show(self, file: GrowingObject, expires_s: int | None) -> None:
        kind = "output" if file is self._output else "error"
        filename = f"{self._record.id}_{kind}.jsonl"
        record = FileObject(file.name, file.size, self._record.created_at, filename, PURPOSE, expires_s)
        await self._shared.files.put(file.name, record)


@dataclass(slots=True)
class _Rendered:
    """Lines as bytes, and their numbers."""

    output: bytes = b""
    errors: bytes = b""
    in_output: list[int] = field(default_factory=list)
    in_errors: list[int] = field(default_factory=list)


class _Written(msgspec.Struct):
    id: str


_id_decoder = msgspec.json.Decoder(_Written)


def _line_of(id: str, separator: str) -> int:
    return int(id.rpartition(separator)[2])
