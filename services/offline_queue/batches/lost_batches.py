"""What the streams have of batches whose records are lost."""

import asyncio
import logging

from services.offline_queue.batches.file_sweep import SWEEP_PERIOD_S
from services.offline_queue.batches.tools import BatchTools
from shared.cancellation import check_cancelled
from shared.errors import BusError
from shared.protocol import subjects

logger = logging.getLogger(__name__)

LOST_AGE_S = 3600.0  # of what is stored of them; a batch may be made again


class LostBatches:
    """A batch's record is stored before all else of it; but a store that loses its newest messages, as in a power cut,
    may lose that and keep the others, which nobody will ever ask for. They are looked for at first, and again where the
    bus was away since: of a large stream that is many subjects."""

    def __init__(self, tools: BatchTools) -> None:
        self._tools = tools
        self._reconnects: int | None = None  # of the bus, when there were none

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.remove(self._tools.clock.unix_s() - LOST_AGE_S)
            except BusError as error:
                logger.warning("lost batches not looked for", extra={"why": str(error)})
            check_cancelled()
            await asyncio.sleep(SWEEP_PERIOD_S)

    async def remove(self, before_s: float) -> int:
        """All that is stored of them, where nothing was added since ``before_s`` (unix time); how many. Raises
        BusError."""
        reconnects = self._tools.bus.reconnects
        if reconnects == self._reconnects:
            return 0
        lost, num_removed = await self._find(), 0
        for batch_id in lost:
            is_old = await self._newest_s(batch_id) < before_s
            if is_old and not await self._tools.batches.has(batch_id):  # else made again, by its Idempotency-Key
                await self._tools.clear(batch_id)
                logger.warning("a batch without a record is removed", extra={"batch_id": batch_id})
                num_removed += 1
        if num_removed == len(lost):
            self._reconnects = reconnects
        return num_removed

    async def _find(self) -> list[str]:
        """By id. The records are read last: each was there before what else there is of its batch."""
        found: set[str] = set()
        for stream, subject in self._tools.stored("*"):
            async for page in self._tools.bus.subject_pages(stream, subject):
                found |= {subjects.request_of(each).rpartition(".")[0] for each in page}
        return sorted(found - await self._tools.batches.keys())

    async def _newest_s(self, batch_id: str) -> float:
        """When the last of it was stored, unix time."""
        bus, newest_s = self._tools.bus, 0.0
        for stream, subject in self._tools.stored(batch_id):
            async for raw in bus.read_raw(stream, subject, newest_only=True):
                newest_s = max(newest_s, raw.stored_s)
        return newest_s
