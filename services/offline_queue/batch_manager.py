"""All batches that have not ended: one life each, fed by the watch of the records and by the stream of results."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from services.offline_queue import batch_records
from services.offline_queue.batch_files import BatchFiles
from services.offline_queue.batch_ingest import BatchIngestion
from services.offline_queue.batch_life import BatchLife, BatchTools, RequestPool
from shared.bus import Bucket, Bus, Stored
from shared.clock import Clock
from shared.errors import BusError, NotFoundOnBusError
from shared.openai.requests import ServedModel
from shared.protocol import subjects
from shared.protocol.messages import BatchRecord, FileRecord, OfflineResult
from shared.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class BatchStats:
    """Batches and lines that have not ended."""

    batches: int
    validating: int
    lines_open: int
    lines_done: int


class BatchManager:
    """The lives of all batches in this process; only one process may run it at a time. Memory grows with the batches
    that have not ended, never with those that have."""

    def __init__(self, bus: Bus, tokenizer: Tokenizer, model: ServedModel, pool: RequestPool, clock: Clock) -> None:
        self._bus = bus
        self._tokenizer = tokenizer
        self._model = model
        self._pool = pool
        self._clock = clock
        self._lives: dict[str, BatchLife] = {}

    async def start(self) -> None:
        """Recover: when this returns, the pool holds every request that has to run, in the order of the batches'
        creation and of their lines. Raises BusError."""
        await self._bus.ensure_streams()
        self._batches = await self._bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)
        self._tools = await self._make_tools(self._batches)
        for entry in await self._batches.entries():
            if entry.value is not None and not entry.value.cleared:
                self._lives[entry.key] = BatchLife(self._tools, entry.value)
        for life in self._in_order():
            with contextlib.suppress(NotFoundOnBusError):  # its run will say so
                await life.admit()
        if self._lives:
            logger.info("batches recovered", extra={"batches": len(self._lives), "lines": self.stats().lines_open})

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for life in self._in_order():
                group.create_task(self._live(life))
            group.create_task(self._watch_batches(group))
            group.create_task(self._follow_results())

    def stats(self) -> BatchStats:
        lives = list(self._lives.values())
        at_work = [life.progress for life in lives if life.progress is not None]
        return BatchStats(
            batches=len(lives),
            validating=sum(life.record.status == batch_records.VALIDATING for life in lives),
            lines_open=sum(progress.num_open for progress in at_work),
            lines_done=sum(progress.total - progress.num_open for progress in at_work),
        )

    async def _make_tools(self, batches: Bucket[BatchRecord]) -> BatchTools:
        files = await self._bus.bucket(subjects.FILES_BUCKET, FileRecord)
        objects = await self._bus.objects()
        return BatchTools(
            bus=self._bus,
            batches=batches,
            objects=objects,
            ingestion=BatchIngestion(self._bus, objects, self._tokenizer, self._model),
            files=BatchFiles(self._bus, files, objects, self._tokenizer),
            pool=self._pool,
            clock=self._clock,
            model=self._model.name,
        )

    def _in_order(self) -> list[BatchLife]:
        return sorted(self._lives.values(), key=lambda life: (life.record.created_at, life.record.id))

    async def _watch_batches(self, group: asyncio.TaskGroup) -> None:
        async for entry in self._batches.watch():
            if entry is None or entry.value is None or entry.value.cleared:
                continue
            life = self._lives.get(entry.key)
            if life is not None:
                life.notice(entry.value)
            elif entry.value.status not in batch_records.FINAL:
                life = self._lives[entry.key] = BatchLife(self._tools, entry.value)
                group.create_task(self._live(life))

    async def _live(self, life: BatchLife) -> None:
        """A batch whose step failed on the bus tries again from what the bus holds; the others go on meanwhile."""
        batch_id, failed = life.record.id, False
        try:
            while True:
                generation = self._bus.reconnects
                try:
                    if failed:
                        await life.restart()
                    return await life.run()
                except NotFoundOnBusError as error:
                    logger.warning("batch is gone", extra={"batch_id": batch_id, "missing": str(error)})
                    return None
                except BusError as error:
                    logger.warning("batch waits for the bus", extra={"batch_id": batch_id, "why": str(error)})
                    failed = True
                    await self._bus.wait_reconnected(generation, RETRY_S)
        finally:
            del self._lives[batch_id]

    async def _follow_results(self) -> None:
        async for stored in self._bus.follow(subjects.RESULTS_STREAM, subjects.ALL_RESULTS, OfflineResult):
            if stored is None:
                continue
            batch_id, _, line = stored.message.request_id.rpartition(".")
            life = self._lives.get(batch_id)
            if life is not None:
                life.add_result(int(line), stored.message)
            else:
                await self._drop_late(batch_id, stored)

    async def _drop_late(self, batch_id: str, stored: Stored[OfflineResult]) -> None:
        """The result of a request that was running when its batch was cancelled or expired has no place any more."""
        try:
            entry = await self._batches.get(batch_id)
            if entry.value is not None and entry.value.cleared:
                await self._bus.delete_stored(subjects.RESULTS_STREAM, stored.sequence)
        except NotFoundOnBusError:
            return
        except BusError as error:
            logger.warning("late result not deleted", extra={"subject": stored.subject, "why": str(error)})
