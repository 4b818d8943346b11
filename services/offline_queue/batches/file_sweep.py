"""Files that have expired, what nobody can reach any more in the object store, and records that nobody asks for."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from services.offline_queue.batches.lines import lines_object
from services.offline_queue.batches.tools import BatchTools
from shared.cancellation import check_cancelled, wait_set
from shared.clock import Deadline
from shared.errors import BusError, ConflictError, NotFoundOnBusError
from shared.protocol.offline.batches import BatchRecord, FileRecord
from shared.watch.stack_watch import ended_at

logger = logging.getLogger(__name__)

GRACE_S = 60  # a batch or a download that came in time goes on with a file that the gateway shows no more
RECHECK_S = 60.0  # the clock that expiry goes by may be set while we wait
SWEEP_PERIOD_S = 3600.0
ORPHAN_AGE_S = 3600.0  # of what no record names: an upload stores its last chunk seconds before its record
FORGET_AGE_S = 24 * 3600.0  # of deletions: who watches and was away for longer starts anew


class FileSweep:
    """Deletes expired files; and once an hour the records of batches that ended long ago, what is kept of deleted ones,
    and what a kill left half done: contents without a record, chunks without an object. It keeps nothing that the bus
    does not hold, so a restart loses nothing; one process may run it at a time. The gateway hides a file as soon as it
    expires; here its bytes go."""

    def __init__(self, tools: BatchTools, is_being_read: Callable[[str], bool], keep_batches_s: float = 0.0) -> None:
        """``is_being_read``: a batch that is still to be read in needs this file (by id); it stays until then.
        ``keep_batches_s``: so long the record of a batch is kept after its end; 0 is for ever."""
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

    async def remove_orphans(self) -> int:
        """Objects that no record names, and chunks of none; how many. Raises BusError."""
        before_s = self._clock.unix_s() - ORPHAN_AGE_S
        old = [name for name, stored_s in (await self._objects.all()).items() if stored_s < before_s]
        wanted = await self._files.keys() | {lines_object(key) for key in await self._batches.keys()}
        orphans = [name for name in old if name not in wanted]
        for name in orphans:
            await self._objects.delete(name)
        return len(orphans) + await self._objects.sweep(before_s)

    async def forget_old(self) -> int:
        """Records of batches that ended long ago or that no client sees, Idempotency-Keys of batches that are gone, and
        that keys of records were deleted; how many. Raises BusError."""
        now_s, num_forgotten = self._clock.unix_s(), 0
        for entry in await self._batches.entries():
            if (record := entry.value) is not None and record.cleared and self._is_unwanted(record, now_s):
                await self._batches.delete(entry.key)
                num_forgotten += 1
        num_forgotten += await self._free_keys(now_s - ORPHAN_AGE_S)
        for bucket in (self._files, self._batches, self._batch_keys):
            num_forgotten += await bucket.forget_deleted(now_s - FORGET_AGE_S)
        return num_forgotten

    async def _free_keys(self, before_s: float) -> int:
        """Of batches that are gone, or never came to be; how many. It comes before their deletions are forgotten: until
        then no batch is written under such an id again."""
        old = [entry for entry in await self._batch_keys.entries() if entry.value and entry.value.created_at < before_s]
        there = await self._batches.keys() if old else set()
        unused = [entry for entry in old if entry.value and entry.value.batch_id not in there]
        for entry in unused:
            with contextlib.suppress(ConflictError):
                await self._batch_keys.delete(entry.key, entry.revision)
        return len(unused)

    def _is_unwanted(self, record: BatchRecord, now_s: float) -> bool:
        age_s = now_s - ended_at(record)
        if record.is_withdrawn:
            return age_s >= ORPHAN_AGE_S
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
                removed, forgotten = await self.remove_orphans(), await self.forget_old()
                if removed or forgotten:
                    logger.info("swept", extra={"orphans": removed, "records": forgotten})
            except BusError as error:
                logger.warning("not swept", extra={"why": str(error)})
            check_cancelled()
            await asyncio.sleep(SWEEP_PERIOD_S)
