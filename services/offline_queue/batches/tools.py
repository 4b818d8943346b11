"""What every batch needs, shared by all."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from services.offline_queue.batches.lines import lines_object
from services.offline_queue.batches.room import PoolRoom
from services.offline_queue.batches.spending import BatchSpending
from shared.bus import Bucket, Bus, Objects
from shared.clock import Clock
from shared.offline_queue.offline_pool import OfflinePool
from shared.openai.served_model import ServedModel
from shared.protocol import subjects
from shared.protocol.offline.batches import BatchKey, BatchRecord, FileRecord
from shared.protocol.subjects import ModelSubjects
from shared.text.tokenizer import Tokenizer

MOST_READ = 256  # input files at a time; the bus has 1,000 places for readers of all processes (shared/bus/pulls.py)
MOST_ADMITTED = 16  # batches at a time; each may have 16 MiB of its results in memory meanwhile


@dataclass(frozen=True, slots=True)
class BatchTools:
    """``reading``: batches take turns by the group of lines that they read, first come, first served; ``places``: so
    many of them, since each keeps a reader of the bus; ``admissions``: so many batches that learn what is done of
    them."""

    bus: Bus
    of_model: ModelSubjects
    tokenizer: Tokenizer
    model: ServedModel
    pool: OfflinePool
    clock: Clock
    room: PoolRoom
    queued_tokens: Callable[[str], int]  # of all open batches of an owner
    max_failures: int  # of one request, before it is given up
    batches: Bucket[BatchRecord]
    batch_keys: Bucket[BatchKey]
    files: Bucket[FileRecord]
    objects: Objects
    spending: BatchSpending
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_READ))
    admissions: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_ADMITTED))

    def stored(self, batch_id: str) -> tuple[tuple[str, str], ...]:
        """The streams, and by which subjects they have what a batch has there; ``*``: of all batches."""
        return (
            (subjects.REQUESTS_STREAM, self.of_model.batch_requests(batch_id)),
            (subjects.RESULTS_STREAM, self.of_model.batch_results(batch_id)),
            (subjects.RESULTS_STREAM, self.of_model.batch_failures(batch_id)),
        )

    async def clear(self, batch_id: str) -> None:
        """Remove everything that a batch has in the streams, and its lines. Raises BusError."""
        for stream, subject in self.stored(batch_id):
            await self.bus.purge(stream, subject)
        await self.objects.delete(lines_object(batch_id))
