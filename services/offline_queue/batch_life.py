"""One batch from its record to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Protocol

from services.offline_queue import batch_records
from services.offline_queue.batch_files import BatchFiles
from services.offline_queue.batch_ingest import BatchIngestion
from services.offline_queue.batch_lines import read_lines
from services.offline_queue.batch_progress import BatchProgress
from services.offline_queue.batch_records import BatchOutput, Change
from shared.bus import Bucket, Bus, Objects
from shared.cancellation import check_cancelled
from shared.clock import Clock
from shared.errors import NotFoundOnBusError
from shared.protocol import subjects
from shared.protocol.messages import BatchRecord, OfflineRequest, OfflineResult

logger = logging.getLogger(__name__)

PROGRESS_S = 1.0  # the record is written at most so often while results come
RECHECK_S = 60.0  # the clock that expiry goes by may be set while we wait
GROUP_REQUESTS = 256


class RequestPool(Protocol):
    """Where requests wait for an executor."""

    def add(self, requests: list[OfflineRequest]) -> None:
        """Schedulable from now on; ids that are known already are ignored."""

    def discard(self, request_ids: list[str]) -> None:
        """Ended or cancelled: drop those that wait, abort those that run; unknown ids are ignored."""


@dataclass(frozen=True, slots=True)
class BatchTools:
    """What every batch needs, shared by all."""

    bus: Bus
    batches: Bucket[BatchRecord]
    objects: Objects
    ingestion: BatchIngestion
    files: BatchFiles
    pool: RequestPool
    clock: Clock
    model: str


class BatchLife:
    """Drives one batch through its states. All that counts is in the bus: a new life made from the record, in this
    process or the next, goes on where the old one ended, and repeating a step that was cut short changes nothing."""

    def __init__(self, tools: BatchTools, record: BatchRecord) -> None:
        self.record = record
        self.progress: BatchProgress | None = None  # from admission on
        self._tools = tools
        self._changed = asyncio.Event()  # results came, or the end
        self._over = asyncio.Event()  # no result is open, or the batch was cancelled
        self._is_cancelled = False
        self.notice(record)

    def notice(self, record: BatchRecord) -> None:
        """The record was written by anyone; a cancellation takes effect at once."""
        if record.status != batch_records.CANCELLING or self._is_cancelled:
            return
        self._is_cancelled = True
        self._changed.set()
        self._over.set()
        self._discard_open()

    def add_result(self, line: int, result: OfflineResult) -> None:
        """A result is in the stream; one that was there before changes nothing. Before admission nothing is done:
        admission reads all results."""
        if self.progress is not None:
            self._count(self.progress, line, result)

    async def run(self) -> None:
        """To the end, or to a BusError; after ``restart`` it can be called again. Raises NotFoundOnBusError where the
        record is gone."""
        try:
            await self._run()
        except NotFoundOnBusError as error:
            logger.error("batch has lost its data", extra={"batch_id": self.record.id, "missing": str(error)})
            self._discard_open()
            await self._tools.ingestion.clear(self.record.id)
            await self._edit(batch_records.lost(self._now_s()))
            await self._clear()

    async def restart(self) -> None:
        """After a BusError: forget all that the bus knows better, so that ``run`` can be called again.
        Raises BusError."""
        self.progress = None
        if not self._is_cancelled:
            self._over.clear()
        await self._reload()

    async def admit(self) -> None:
        """Learn what is done, and hand the rest to the pool, in the order of the lines. Does nothing for a batch that
        is not at work, or was admitted. Raises BusError."""
        if self.record.status != batch_records.IN_PROGRESS or self.progress is not None:
            return
        bus, batch_id = self._tools.bus, self.record.id
        progress = await BatchProgress.of_lines(batch_id, read_lines(self._tools.objects, batch_id))
        self.progress = progress  # before the results are read: the next one may come to add_result first
        async for result in bus.read(subjects.RESULTS_STREAM, subjects.batch_results(batch_id), OfflineResult):
            self._count(progress, _line_of(result.message.request_id), result.message)
        if not self._is_expired():
            await self._add_to_pool(progress)

    async def _run(self) -> None:
        if self.record.status == batch_records.VALIDATING:
            await self._ingest()
        if self.record.status == batch_records.IN_PROGRESS:
            await self._work()
        if self.record.status in batch_records.ENDING:
            await self._end()
        await self._clear()

    def _count(self, progress: BatchProgress, line: int, result: OfflineResult) -> None:
        if not progress.add_result(line, result):
            return
        self._tools.pool.discard([result.request_id])
        self._changed.set()
        if not progress.num_open:
            self._over.set()

    async def _ingest(self) -> None:
        record, tools = self.record, self._tools
        ingested = await tools.ingestion.run(record, lambda: self._is_cancelled)
        if ingested.errors:
            await self._edit(batch_records.failed(ingested.errors, self._now_s()))
        elif self._is_cancelled:
            await self._reload()
        else:
            await self._edit(batch_records.started(ingested.total, tools.model, self._now_s()))
        logger.info(
            "batch ingested",
            extra={"batch_id": record.id, "status": self.record.status, "lines": ingested.total},
        )

    async def _add_to_pool(self, progress: BatchProgress) -> None:
        """The stream keeps the order of storing, which is that of the lines."""
        group: list[OfflineRequest] = []
        request_subject = subjects.batch_requests(self.record.id)
        async for stored in self._tools.bus.read(subjects.REQUESTS_STREAM, request_subject, OfflineRequest):
            if progress.add_request(stored.message.line, stored.sequence):
                group.append(stored.message)
            if len(group) == GROUP_REQUESTS:
                self._hand_over(progress, group)
                group = []
        self._hand_over(progress, group)

    def _hand_over(self, progress: BatchProgress, group: list[OfflineRequest]) -> None:
        """A result may have come since the request was read, or a cancellation."""
        group = [request for request in group if progress.is_open(request.line)]
        if group and not self._is_cancelled:
            self._tools.pool.add(group)

    async def _work(self) -> None:
        """Follow the results until none is open, or the batch is cancelled or expires."""
        await self.admit()
        while not self._over.is_set() and not self._is_expired():
            await _wait(self._changed, min(RECHECK_S, self.record.expires_at - self._tools.clock.unix_s()))
            await _wait(self._over, PROGRESS_S)
            await self._write_progress()
        progress = self.progress
        assert progress is not None
        if not progress.num_open:
            await self._edit(batch_records.finalizing(progress.counts, self._now_s()))
            return
        self._discard_open()
        await self._reload()

    async def _write_progress(self) -> None:
        """Requests whose results are durable are deleted, and the record shows the counts."""
        self._changed.clear()
        progress = self.progress
        assert progress is not None
        done = progress.take_done_requests()
        for start in range(0, len(done), GROUP_REQUESTS):
            group = done[start : start + GROUP_REQUESTS]
            await asyncio.gather(*(self._tools.bus.delete_stored(subjects.REQUESTS_STREAM, each) for each in group))
        await self._edit(batch_records.progressed(progress.counts))

    async def _end(self) -> None:
        """Write the files, then the final status."""
        output = BatchOutput(None, None, batch_records.BatchCounts())
        if batch_records.was_ingested(self.record):
            output = await self._tools.files.write(self.record, self._now_s())
        await self._edit(batch_records.ended(output, self._now_s()))

    async def _clear(self) -> None:
        """Only now nothing is needed any more of what the streams hold."""
        await self._tools.ingestion.clear(self.record.id)
        await self._edit(batch_records.cleared)
        logger.info("batch ended", extra={"batch_id": self.record.id, "status": self.record.status})

    async def _reload(self) -> None:
        entry = await self._tools.batches.get(self.record.id)
        assert entry.value is not None
        self.record = entry.value
        self.notice(self.record)

    async def _edit(self, change: Change) -> None:
        self.record = await self._tools.batches.edit(self.record.id, change)
        self.notice(self.record)

    def _discard_open(self) -> None:
        if self.progress is not None:
            self._tools.pool.discard(self.progress.open_request_ids())

    def _is_expired(self) -> bool:
        return self._tools.clock.unix_s() >= self.record.expires_at

    def _now_s(self) -> int:
        return int(self._tools.clock.unix_s())


def _line_of(request_id: str) -> int:
    return int(request_id.rpartition(".")[2])


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    check_cancelled()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, timeout_s)):
            await event.wait()
