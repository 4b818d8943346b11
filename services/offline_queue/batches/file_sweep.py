"""Files that have expired, what nobody can reach any more in the object store, and records that nobody asks for."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from services.offline_queue.batches.leftovers import Leftovers
from services.offline_queue.batches.tools import BatchTools
from shared.bus import Bucket
from shared.cancellation import check_cancelled, wait_set
from shared.clock import Deadline
from shared.errors import BusError, NotFoundOnBusError
from shared.protocol.offline.batches import BatchRecord, FileRecord
from shared.watch.stack_watch import ended_at

logger = logging.getLogger(__name__)

GRACE_S = 60  # a batch or a download that came in time goes on with a file that the gateway shows no more
RECHECK_S = 60.0  # the clock that expiry goes by may be set while we wait
SWEEP_PERIOD_S = 3600.0
WITHDRAWN_AGE_S = 3600.0  # of the record of a batch that no client sees
AT_WORK_S = 600.0  # what is left over as long as that and has not changed is nobody's work
FORGET_AGE_S = 24 * 3600.0  # of deletions, by the clock: whoever makes a batch by an id of before is done long ago

Deletions: TypeAlias = tuple[Bucket[Any], dict[str, int]]  # of a bucket: keys and revisions


class FileSweep:
    """Deletes expired files; and about once an hour the records of batches that ended long ago, what is kept of deleted
    ones, and what a kill left half done. It keeps nothing that the bus does not hold, so a restart loses nothing; one
    process may run it at a time. The gateway hides a file as soon as it expires; here its bytes go."""

    def __init__(self, tools: BatchTools, is_being_read: Callable[[str], bool], keep_batches_s: float = 0.0) -> None:
        """``is_being_read``: a batch that is still to be read in needs this file (by id); it stays until then.
        ``keep_batches_s``: so long the record of a batch is kept after its end; 0 is for ever."""
        self._tools = tools
        self._batches, self._files, self._objects = tools.batches, tools.files, tools.objects
        self._batch_keys = tools.batch_keys
        self._clock = tools.clock
        self._is_being_read = is_being_read
        self._keep_batches_s = keep_batches_s
        self._due: dict[str, Deadline] = {}  # by file
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._files.follow(self._on_file))
            group.create_task(self._delete_when_due())
            group.create_task(self._sweep_hourly())

    async def old_deletions(self) -> list[Deletions]:
        """For ``forget_old``, some minutes later. Raises BusError."""
        before_s = self._clock.unix_s() - FORGET_AGE_S
        buckets: tuple[Bucket[Any], ...] = (self._files, self._batches, self._batch_keys)
        return [(bucket, await bucket.deletions(before_s)) for bucket in buckets]

    async def forget_old(self, deletions: Iterable[Deletions] = ()) -> int:
        """Records of batches that ended long ago or that no client sees, and these ``deletions``; how many. Raises
        BusError."""
        now_s, num_forgotten = self._clock.unix_s(), 0
        for entry in await self._batches.entries():
            if (record := entry.value) is not None and record.cleared and self._is_unwanted(record, now_s):
                await self._batches.delete(entry.key)
                num_forgotten += 1
        for bucket, old in deletions:
            await bucket.forget(old)
            num_forgotten += len(old)
        return num_forgotten

    def _is_unwanted(self, record: BatchRecord, now_s: float) -> bool:
        age_s = now_s - ended_at(record)
        if record.is_withdrawn:
            return age_s >= WITHDRAWN_AGE_S
        return 0 < self._keep_batches_s <= age_s

    def _on_file(self, file_id: str, record: FileRecord | None) -> None:
        self._due.pop(file_id, None)
        if record is not None and record.expires_at is not None:
            self._due[file_id] = Deadline(self._clock, record.expires_at + GRACE_S)
            self._changed.set()

    async def _delete_when_due(self) -> None:
        while True:
            self._changed.clear()
            for file_id in [each for each, due in self._due.items() if due.left_s() <= 0]:
                if await self._try_delete(file_id):
                    self._due.pop(file_id, None)
            left_s = (due.left_s() for due in self._due.values())
            await wait_set(self._changed, min([RECHECK_S, *(each for each in left_s if each > 0)]))

    async def _try_delete(self, file_id: str) -> bool:
        """False where it is to be tried again later."""
        if self._is_being_read(file_id):
            return False
        try:
            await self._files.delete(file_id)
            await self._objects.delete(file_id)
        except NotFoundOnBusError:
            return True
        except BusError as error:
            logger.warning("expired file not deleted yet", extra={"file_id": file_id, "why": str(error)})
            return False
        logger.info("expired file deleted", extra={"file_id": file_id})
        return True

    async def _sweep_hourly(self) -> None:
        while True:
            try:
                deletions = await self.old_deletions()
                leftovers = await Leftovers.found(self._tools)
                await asyncio.sleep(AT_WORK_S)
                removed = await leftovers.remove_if_still(self._tools)
                # last: while a key is there, its batch's deletion is known
                forgotten = await self.forget_old(deletions)
                if removed or forgotten:
                    logger.info("swept", extra={"leftovers": removed, "records": forgotten})
            except BusError as error:
                logger.warning("not swept", extra={"why": str(error)})
            check_cancelled()
            await asyncio.sleep(SWEEP_PERIOD_S)
