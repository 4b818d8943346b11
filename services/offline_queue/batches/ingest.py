"""From an input file to stored requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import IO, BinaryIO, cast

from services.offline_queue.batches.input import MAX_ERRORS, MAX_LINE_BYTES, MAX_LINES, BatchInput, ParsedLines
from services.offline_queue.batches.lines import encode_lines, lines_object, split_lines
from services.offline_queue.batches.spool import temporary_file
from shared.bus import Bus, Objects
from shared.errors import NotFoundOnBusError
from shared.openai.completions.requests import ServedModel
from shared.protocol import subjects
from shared.protocol.batches import BatchRecord, LineError
from shared.text.tokenizer import Tokenizer

GROUP_LINES = 64
GROUP_BYTES = 256 * 1024

Group = list[tuple[int, bytes]]


@dataclass(slots=True)
class Ingested:
    """``total`` requests are stored, or ``errors`` says why none is."""

    total: int = 0
    errors: list[LineError] = field(default_factory=list)


class BatchIngestion:
    """Reads input files in groups of lines. Batches take turns by the group, one group at a time being tokenized in a
    thread: a long file does not hold up a short one, and the event loop keeps most of the interpreter."""

    def __init__(self, bus: Bus, objects: Objects, tokenizer: Tokenizer, model: ServedModel) -> None:
        self._bus = bus
        self._objects = objects
        self._tokenizer = tokenizer
        self._model = model
        self._turn = asyncio.Lock()  # first come, first served

    async def run(self, record: BatchRecord, is_cancelled: Callable[[], bool]) -> Ingested:
        """Store every request, the results of those that cannot be served, and the batch's lines. What an earlier,
        unfinished run left is removed first; where there are errors, nothing is left. A cancelled run stops early.
        Raises BusError; running again is safe."""
        await self.clear(record.id)
        ingested = Ingested()
        with temporary_file() as lines:
            try:
                await self._read(record, is_cancelled, ingested, lines)
            except NotFoundOnBusError:
                message = f"The input file {record.input_file_id} does not exist; was it deleted?"
                ingested.errors.append(LineError("input_file_not_found", message, param="input_file_id"))
            if not ingested.errors and not ingested.total and not is_cancelled():
                ingested.errors.append(LineError("empty_file", "The input file has no requests."))
            if ingested.errors:
                await self.clear(record.id)
                return ingested
            lines.seek(0)
            await self._objects.put(lines_object(record.id), cast(BinaryIO, lines))
        return ingested

    async def clear(self, batch_id: str) -> None:
        """Remove everything that a batch has in the streams, and its lines. Raises BusError."""
        await self._bus.purge(subjects.REQUESTS_STREAM, subjects.batch_requests(batch_id))
        await self._bus.purge(subjects.RESULTS_STREAM, subjects.batch_results(batch_id))
        await self._bus.purge(subjects.RESULTS_STREAM, subjects.batch_failures(batch_id))
        await self._objects.delete(lines_object(batch_id))

    async def _read(
        self, record: BatchRecord, is_cancelled: Callable[[], bool], ingested: Ingested, lines: IO[bytes]
    ) -> None:
        reader = BatchInput(record, self._tokenizer, self._model)
        async for group in self._groups(record.input_file_id):
            async with self._turn:
                parsed = await asyncio.to_thread(reader.parse, group)
            ingested.errors += parsed.errors[: MAX_ERRORS - len(ingested.errors)]
            if len(ingested.errors) == MAX_ERRORS or is_cancelled():
                return
            if not ingested.errors:
                await self._store(parsed)
                await asyncio.to_thread(lines.write, encode_lines(parsed.lines))
                ingested.total += len(parsed.lines)

    async def _store(self, parsed: ParsedLines) -> None:
        stored: list[tuple[str, object]] = []
        stored += [(subjects.offline_request(each.request.request_id), each) for each in parsed.requests]
        stored += [(subjects.result(each.request_id), each) for each in parsed.failures]
        await self._bus.store_many(stored)

    async def _groups(self, file_id: str) -> AsyncIterator[Group]:
        """Ends after the first line that is one too many."""
        group: Group = []
        size = 0
        async for line, data in split_lines(self._objects.chunks(file_id), MAX_LINE_BYTES):
            group.append((line, data))
            size += len(data)
            if line > MAX_LINES:
                break
            if len(group) == GROUP_LINES or size >= GROUP_BYTES:
                yield group
                group, size = [], 0
        if group:
            yield group
