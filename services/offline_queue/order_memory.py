"""What the offline order has learnt outlives the process."""

import asyncio
import logging
from collections.abc import Awaitable

from shared.bus import Bucket, Bus
from shared.cancellation import check_cancelled
from shared.errors import BusError
from shared.offline_queue.offline_pool import OfflinePool
from shared.protocol import subjects
from shared.protocol.offline.learnt import Learnt, LearntBy

logger = logging.getLogger(__name__)

STOP_S = 1.0  # of a process that is killed soon
PERIOD_S = 5.0  # so much is lost where the process is killed
MAX_RECORDS = 8  # of the model with other tokenizers, orders and blocks, beside the own one; each is below 300 KB


class OrderMemory:
    """Keeps it in LEARNT_BUCKET: for the same order, model and tokenizer, since lengths are the model's, and what
    prompts have in common is known by their tokens. Without a bus nothing stops: it is kept when there is one again."""

    def __init__(self, bus: Bus, pool: OfflinePool, learnt_by: LearntBy) -> None:
        self._bus = bus
        self._pool = pool
        self._learnt_by = learnt_by
        self._bucket: Bucket[Learnt]
        self._kept = b""
        self._num_learnt = 0  # when that was made

    async def recall(self) -> None:
        """To be called before anything is in the pool. What cannot be used is left alone until there is something to
        replace it. Raises BusError."""
        self._bucket = await self._bus.bucket(subjects.LEARNT_BUCKET, Learnt)
        others: list[str] = []
        for entry in await self._bucket.entries():
            if entry.value is None:
                continue
            if entry.key == self._learnt_by.key:
                self._take(entry.value)
            elif entry.value.by.model == self._learnt_by.model:
                others.append(entry.key)
        for key in others[: max(0, len(others) - MAX_RECORDS)]:
            await self._bucket.delete(key)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            check_cancelled()
            await self.keep()

    async def keep(self) -> None:
        """Where there is something new."""
        await self._tried(self._put())

    async def stop(self) -> None:
        """As ``keep``, for no longer than STOP_S."""
        await self._tried(self._bus.at_the_end(self._put, STOP_S))

    async def _put(self) -> None:
        if (num_learnt := self._pool.num_learnt) == self._num_learnt:
            return
        data = self._pool.remember()
        if data != self._kept:
            await self._bucket.put(self._learnt_by.key, Learnt(self._learnt_by, data))
        self._kept, self._num_learnt = data, num_learnt

    async def _tried(self, putting: Awaitable[None]) -> None:
        try:
            await putting
        except BusError as error:
            logger.warning("what was learnt is not kept yet", extra={"why": str(error)})

    def _take(self, learnt: Learnt) -> None:
        if learnt.by != self._learnt_by:
            logger.warning("what was learnt is another's", extra={"by": str(learnt.by)})
            return
        try:
            self._pool.recall(learnt.data)
        except ValueError as error:
            logger.warning("what was learnt cannot be used", extra={"bytes": len(learnt.data), "why": str(error)})
            return
        self._kept = learnt.data
        logger.info("what was learnt is there again", extra={"bytes": len(learnt.data), **self._pool.details()})
