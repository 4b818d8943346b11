"""From an input file to stored requests."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import partial
from typing import IO, BinaryIO, cast

from msgspec import Raw

from services.offline_queue.batches.input import MAX_ERRORS, MAX_LINES, BatchInput, ParsedLines
from services.offline_queue.batches.lines import encode_lines, lines_object, temporary_file
from services.offline_queue.batches.results import failed_result
from services.offline_queue.batches.tools import BatchTools
from shared.cancellation import ending
from shared.errors import BusError, NotFoundOnBusError
from shared.lines import MAX_LINE_BYTES, split_lines
from shared.openai.errors import RequestError
from shared.protocol.codec import encode
from shared.protocol.offline.batches import BatchRecord, LineError

logger = logging.getLogger(__name__)

GROUP_LINES = 64
GROUP_BYTES = 256 * 1024
REST_OF_PLAN_BYTES = 64 * 1024  # that brings a request: some thousand entries
RETRY_S, MAX_RETRY_S = 0.5, 30.0

Group = list[tuple[int, bytes]]


class BatchIngestion:
    """Reads one input file in groups of lines. Batches take turns by the group, one group at a time being tokenized in
    a thread: a long file does not hold up a short one, and the event loop keeps most of the interpreter. After
    ``run``, ``total`` requests are stored, or ``errors`` says why none is."""

    def __init__(
        self,
        tools: BatchTools,
        record: BatchRecord,
        cancelled: asyncio.Event,
        is_expired: Callable[[], bool],
        check_tokens: Callable[[int], LineError | None],
    ) -> None:
        """``check_tokens``: told how many there are in the lines so far, prompts and longest answers; says why they are
        too many."""
        self.total = 0
        self.num_tokens = 0
        self.errors: list[LineError] = []
        self._tools = tools
        self._record = record
        self._cancelled = cancelled
        self._is_expired = is_expired
        self._check_tokens = check_tokens

    async def run(self) -> None:
        """Store every request, the results of those that cannot be served, and the batch's lines; stops early when
        cancelled. What an unfinished run left goes first; where there are errors, nothing is left. What the bus refuses
        to store, as where its disk is full, is offered again, and not read again. Raises BusError; a new one may run
        again."""
        tools, record = self._tools, self._record
        await tools.clear(record.id)
        with temporary_file() as lines:
            try:
                async with self._place():
                    if not self._cancelled.is_set():
                        await self._read(lines)
            except NotFoundOnBusError:
                message = f"The input file {record.input_file_id} does not exist; was it deleted?"
                self.errors.append(LineError("input_file_not_found", message, param="input_file_id"))
            if not self.errors and not self.total and not self._cancelled.is_set():
                self.errors.append(LineError("empty_file", "The input file has no requests."))
            if self.errors:
                await tools.clear(record.id)
                return

            async def put_lines() -> None:
                lines.seek(0)
                await tools.objects.put(lines_object(record.id), cast(BinaryIO, lines))

            await self._until_stored(put_lines)

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """Of those who read at a time; a batch that is cancelled waits for none."""
        taking = asyncio.ensure_future(self._tools.places.acquire())
        cancelled = asyncio.ensure_future(self._cancelled.wait())
        try:
            async with ending(taking):
                await asyncio.wait((taking, cancelled), return_when=asyncio.FIRST_COMPLETED)
                yield
        finally:
            cancelled.cancel()
            if taking.done() and not taking.cancelled():
                self._tools.places.release()

    async def _read(self, lines: IO[bytes]) -> None:
        reader = BatchInput(self._record, self._tools.tokenizer, self._tools.model)
        async for group in _groups(self._tools, self._record):
            async with self._tools.reading:
                parsed = await asyncio.to_thread(reader.parse, group)
            self.errors += parsed.errors[: MAX_ERRORS - len(self.errors)]
            if len(self.errors) == MAX_ERRORS or self._cancelled.is_set():
                return
            self.num_tokens += sum(line.most_tokens for line in parsed.lines)
            if too_many := self._check_tokens(self.num_tokens):
                self.errors.append(too_many)
                return
            if not self.errors:
                await self._until_stored(partial(_store, self._tools, parsed))
                await asyncio.to_thread(lines.write, encode_lines(parsed.lines))
                self.total += len(parsed.lines)

    async def _until_stored(self, store: Callable[[], Awaitable[None]]) -> None:
        """Raises BusError once the batch is cancelled or has expired."""
        bus, delay_s = self._tools.bus, RETRY_S
        while True:
            generation = bus.reconnects
            try:
                return await store()
            except BusError as error:
                if self._cancelled.is_set() or self._is_expired():
                    raise
                why = {"batch_id": self._record.id, "why": str(error)}
                logger.warning("batch waits to be stored", extra=why)
                await bus.wait_reconnected(generation, delay_s)
                delay_s = min(2 * delay_s, MAX_RETRY_S)


async def store_again(tools: BatchTools, record: BatchRecord, lines: Collection[int]) -> list[LineError]:
    """The requests of these lines, which the store has lost; what cannot be read any more is returned. Raises
    NotFoundOnBusError where the input file is gone, and BusError."""
    reader, wanted = BatchInput(record, tools.tokenizer, tools.model), dict.fromkeys(lines)
    errors: list[LineError] = []
    async for group in _groups(tools, record):
        async with tools.reading:
            parsed = await asyncio.to_thread(reader.parse, [each for each in group if each[0] in wanted])
        await _store(tools, parsed)
        errors += parsed.errors
    return errors


async def _store(tools: BatchTools, parsed: ParsedLines) -> None:
    """What no plan could bring to an executor fails, as over HTTP."""
    most = tools.bus.max_payload - REST_OF_PLAN_BYTES
    messages: list[tuple[str, object]] = [(tools.of_model.result(each.request_id), each) for each in parsed.failures]
    for each in parsed.requests:
        request_id, data = each.request.request_id, encode(each)
        if len(data) <= most:
            messages.append((tools.of_model.request(request_id), Raw(data)))
        else:
            why = f"the request has {len(data)} bytes; the bus takes {most} of one"
            failed = failed_result(request_id, RequestError(why, code="request_too_large", status=413))
            messages.append((tools.of_model.result(request_id), failed))
    await tools.bus.store_many(messages)


async def _groups(tools: BatchTools, record: BatchRecord) -> AsyncIterator[Group]:
    """Of the input file. Ends after the first line that is too many: behind the last an empty one may stand."""
    group: Group = []
    size = 0
    async for line, data in split_lines(tools.objects.chunks(record.input_file_id), MAX_LINE_BYTES):
        group.append((line, data))
        size += len(data)
        if line > MAX_LINES and (data.strip() or line > MAX_LINES + 1):
            break
        if len(group) == GROUP_LINES or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
