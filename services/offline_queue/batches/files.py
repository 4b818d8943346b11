"""The output and error files of a batch, which grow as results come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import msgspec

from services.offline_queue.batches.lines import BatchLine, LineSpool, line_of
from services.offline_queue.batches.progress import add_to, is_completed
from services.offline_queue.batches.records import ENDING, BatchCounts, Change, ended
from services.offline_queue.batches.results import ResultWriter, own_result, unreadable_result
from services.offline_queue.batches.tools import BatchTools
from shared.bus import GrowingObject
from shared.errors import BusError, NotFoundOnBusError
from shared.lines import split_lines
from shared.openai.completions.answers import PromptTokensDetails
from shared.protocol import subjects
from shared.protocol.offline.batches import BatchRecord, FileRecord, InputTokensDetails
from shared.protocol.offline.requests import OfflineResult
from shared.protocol.sampling import FinishReason

logger = logging.getLogger(__name__)

GROUP_LINES = 128
IN_OUTPUT, IN_ERRORS, NOT_RUN = 1, 2, 3  # the last: in the error file, found there as one that has not run
PURPOSE = "batch_output"
UNWRITABLE = "The result of this request cannot be written."

Lines = dict[int, bytes]  # of one file, by their numbers in the input


class BatchOutputs:
    """Each line of the input goes into exactly one of the two files, when its result is there; what is in the files is
    the memory of that, so a kill between any two writes changes nothing. The file ids follow from the batch's id, and
    their time of creation is the batch's, as the ids say. Until the batch has ended the files are shown, and nothing
    refers to them. Memory is bounded whatever the batch's size.
    """

    def __init__(self, tools: BatchTools, record: BatchRecord, lines: LineSpool) -> None:
        self._tools = tools
        self._record = record
        self._lines = lines
        self._written = bytearray(lines.end)
        self._output, self._errors = map(tools.objects.growing, file_names(record.id))

    @classmethod
    async def open(
        cls, tools: BatchTools, record: BatchRecord, tell: Callable[[BatchLine], None] = lambda line: None
    ) -> BatchOutputs:
        """As an earlier process left them, or empty; ``tell`` is told each line of the batch. Raises NotFoundOnBusError
        and BusError."""
        outputs = cls(tools, record, await LineSpool.read(tools.objects, record.id, tell))
        try:
            await outputs.recover()
        except BaseException:
            outputs.close()
            raise
        return outputs

    @property
    def tells_of_not_run(self) -> bool:
        """An earlier process, or one that lost the bus, has written of a line that it has not run."""
        return NOT_RUN in self._written

    async def recover(self) -> None:
        """Learn which lines are there; show the files, as a kill may come between piece and record. Raises BusError."""
        for file, place in ((self._output, IN_OUTPUT), (self._errors, IN_ERRORS)):
            async for _, data in split_lines(file.recover()):
                written = _decoder.decode(data)
                self._written[written.line] = NOT_RUN if written.response is None else place
            if file.size:
                await file.describe()
                await self._show(file, None)

    async def add(self, results: list[OfflineResult]) -> None:
        """Write those that are not written yet. Raises BusError; then a new instance has to recover."""
        writer = ResultWriter(self._record, "", self._tools.tokenizer)
        for start in range(0, len(results), GROUP_LINES):
            group = results[start : start + GROUP_LINES]
            output, errors = await asyncio.to_thread(self._render, group, writer)
            await self._append(self._output, output)
            await self._append(self._errors, errors)

    async def finish(self, record: BatchRecord, now_s: int) -> Change:
        """Write what is missing: results that nobody has told of, and of each line without one, why. ``record`` is in
        the state that its work ended in; returns its end. Raises BusError; a new instance may finish again. It is one
        too where every line had its result, and now one has none: it has to run again."""
        has_result = bytearray(len(self._written))
        counts = await self._add_stored(has_result, is_whole=record.status == "finalizing")
        async for number, counted in self.written_alone(lambda number: bool(has_result[number])):
            has_result[number] = True
            counts += counted
        writer = ResultWriter(record, ENDING[record.status], self._tools.tokenizer)
        for start in range(0, self._lines.end, GROUP_LINES):
            numbers = range(start, min(start + GROUP_LINES, self._lines.end))
            lines = [line for number in numbers if not has_result[number] and (line := self._lines.get(number))]
            if record.status == "finalizing":  # lost; those of a cancelled or expired batch have not run
                counts = replace(counts, failed=counts.failed + len(lines))
            missing = [line for line in lines if not self._written[line.line]]
            if missing and record.status == "finalizing":
                raise BusError(f"results of {record.id} are lost")
            await self._append(self._errors, {line.line: writer.error_line(line, None) for line in missing})
        files = await self._close(self._output, now_s), await self._close(self._errors, now_s)
        return ended(record.status, counts, *files, now_s)

    async def written_alone(self, has_result: Callable[[int], bool]) -> AsyncIterator[tuple[int, BatchCounts]]:
        """Lines whose result is in a file and not in the stream, and what each counts. Raises BusError."""
        for file, place in ((self._output, IN_OUTPUT), (self._errors, IN_ERRORS)):
            if not any(where == place and not has_result(line) for line, where in enumerate(self._written)):
                continue
            try:
                async for _, data in split_lines(self._tools.objects.chunks(file.name)):
                    written = _decoder.decode(data)
                    if written.response is not None and not has_result(written.line):
                        yield written.line, written.response.counts()
            except NotFoundOnBusError as error:
                raise BusError(f"{file.name} was deleted meanwhile") from error

    def close(self) -> None:
        """Let go of the temporary file."""
        self._lines.close()

    async def _add_stored(self, has_result: bytearray, is_whole: bool) -> BatchCounts:
        """All results of the stream. ``is_whole``: all lines are to have run."""
        counts = BatchCounts()
        group: list[tuple[OfflineResult, int]] = []  # with the tokens of its prompt
        subject = self._tools.of_model.batch_results(self._record.id)
        results = self._tools.bus.read(
            subjects.RESULTS_STREAM, subject, OfflineResult, unreadable_result, fetch=GROUP_LINES
        )
        async for stored in results:
            result = own_result(stored)
            number = line_of(result.request_id)
            line = self._lines.get(number)
            if line is None:
                continue
            has_result[number] = True
            if self._written[number] == NOT_RUN and not is_whole:  # the result came too late
                continue
            group.append((result, line.num_prompt_tokens))
            if len(group) == GROUP_LINES:
                counts, group = await self._add_counted(group, counts), []
        return await self._add_counted(group, counts)

    async def _add_counted(self, group: list[tuple[OfflineResult, int]], counts: BatchCounts) -> BatchCounts:
        """What is in the error file has failed, be it that its result could not be written."""
        await self.add([result for result, _ in group])
        for result, num_prompt_tokens in group:
            told = result if self._written[line_of(result.request_id)] == IN_OUTPUT else None
            counts = add_to(counts, told, num_prompt_tokens)
        return counts

    def _render(self, results: list[OfflineResult], writer: ResultWriter) -> tuple[Lines, Lines]:
        """Of the output file, and of the error file."""
        output: Lines = {}
        errors: Lines = {}
        for result in results:
            number = line_of(result.request_id)
            line = self._lines.get(number)
            if line is None or self._written[number] or number in output or number in errors:
                continue
            if is_completed(result):
                try:
                    output[number] = writer.output_line(line, result)
                    continue
                except Exception:  # whatever is wrong with one result ends its line, and nothing else
                    logger.exception("a result cannot be written", extra={"request_id": result.request_id})
                    result = msgspec.structs.replace(result, finish_reason=FinishReason.ERROR, error=UNWRITABLE)
            errors[number] = writer.error_line(line, result)
        return output, errors

    async def _append(self, file: GrowingObject, lines: Lines) -> None:
        if lines:
            await file.append(b"".join(lines.values()))
            await self._show(file, None)
            for number in lines:
                self._written[number] = IN_OUTPUT if file is self._output else IN_ERRORS

    async def _close(self, file: GrowingObject, now_s: int) -> str | None:
        """The file as it stays; one without lines does not exist. Raises BusError where somebody has deleted it since
        its last line: its results are still in the stream, and a new instance writes them again."""
        if not file.size:
            await self._tools.files.delete(file.name)
            await self._tools.objects.delete(file.name)
            return None
        await file.describe()
        lifetime_s = self._record.output_expires_after_s
        await self._show(file, None if lifetime_s is None else now_s + lifetime_s)
        await file.check()  # at last: both would be there again without its bytes
        return file.name

    async def _show(self, file: GrowingObject, expires_s: int | None) -> None:
        kind = "output" if file is self._output else "error"
        batch, filename = self._record, f"{self._record.id}_{kind}.jsonl"
        record = FileRecord(file.name, file.size, batch.created_at, filename, PURPOSE, expires_s, owner=batch.owner)
        await self._tools.files.put(file.name, record)


class _Usage(msgspec.Struct):
    """Of a completion, or under other names of a response."""

    prompt_tokens: int = 0
    input_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails(0)
    input_tokens_details: InputTokensDetails = InputTokensDetails(0)
    completion_tokens: int = 0
    output_tokens: int = 0


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class _Response(msgspec.Struct):
    body: _Body

    def counts(self) -> BatchCounts:
        usage = self.body.usage
        if usage is None:
            return BatchCounts(failed=1)
        cached = usage.prompt_tokens_details.cached_tokens + usage.input_tokens_details.cached_tokens
        tokens = usage.prompt_tokens + usage.input_tokens, cached, usage.completion_tokens + usage.output_tokens
        return BatchCounts(1, 0, *tokens)


def file_names(batch_id: str) -> tuple[str, str]:
    """Of the output and the error file."""
    stem = f"file-{batch_id.removeprefix('batch_')}"
    return f"{stem}-output", f"{stem}-error"


class _Written(msgspec.Struct):
    """What is read back of a line of a file. ``response``: None where its request has never ended."""

    id: str
    response: _Response | None

    @property
    def line(self) -> int:
        return line_of(self.id, "_")


_decoder = msgspec.json.Decoder(_Written)
