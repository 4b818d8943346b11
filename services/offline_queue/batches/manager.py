"""All batches that have not ended: one life each, fed by the watch of the records and by the stream of results."""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from services.offline_queue.batches.adoption import Adoption
from services.offline_queue.batches.life import BatchLife
from services.offline_queue.batches.lines import line_of
from services.offline_queue.batches.results import failed_result, unreadable_failure, unreadable_result
from services.offline_queue.batches.room import PoolRoom
from services.offline_queue.batches.spending import BatchSpending
from services.offline_queue.batches.tools import BatchTools
from services.offline_queue.batches.unserved import PERIOD_S, UnservedBatches
from shared.bus import Bus, Entry, Stored
from shared.cancellation import check_cancelled
from shared.clock import Clock
from shared.errors import BusError, NotFoundOnBusError
from shared.offline_queue.offline_pool import OfflinePool
from shared.openai.errors import RequestError
from shared.openai.served_model import ServedModel
from shared.protocol import subjects
from shared.protocol.offline.batches import OPEN_STATUSES, BatchKey, BatchRecord, FileRecord
from shared.protocol.offline.requests import OfflineFailure, OfflineResult
from shared.scheduling.orders.offline.share import Share
from shared.scheduling.orders.offline.urgency import urgency
from shared.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

T = TypeVar("T", OfflineResult, OfflineFailure)

RETRY_S, MAX_RETRY_S = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class BatchStats:
    """Batches and lines that have not ended."""

    batches: int
    validating: int
    lines_open: int
    lines_held: int  # of the open ones, those in the pool; the others are in the stream alone
    held_bytes: int
    lines_done: int


class BatchManager:
    """The lives of all batches of one model; only one process may run it at a time. Memory grows with the open batches
    alone."""

    def __init__(
        self,
        bus: Bus,
        model_name: str,
        tokenizer: Tokenizer,
        model: ServedModel,
        pool: OfflinePool,
        clock: Clock,
        pool_bytes: int = 256 * 1024**2,
        max_failures: int = 5,
        other_models: Collection[str] = (),
    ) -> None:
        """``model_name``, ``other_models``: the model's and the others' in the stack; ``pool_bytes``: about what all
        batches' requests may take in the pool; ``max_failures``: runs of one request that may fail until it is given
        up."""
        self._bus = bus
        self._model_name = model_name
        self._other_models = other_models
        self._of_model = of_model = subjects.of_model(model_name)
        self._clock = clock
        self._room = PoolRoom(pool_bytes)
        self._lives: dict[str, BatchLife] = {}
        self._elsewhere: dict[str, BatchRecord] = {}  # at work for other models
        fixed = partial(BatchTools, bus=bus, of_model=of_model, tokenizer=tokenizer, model=model)
        told = partial(fixed, pool=pool, clock=clock, room=self._room, queued_tokens=self._queued_tokens)
        self._spending = BatchSpending(bus, clock)
        self._make_tools = partial(told, max_failures=max_failures, spending=self._spending)

    async def start(self) -> None:
        """Recover: when this returns, the pool holds all that has to run, in the order of the batches' creation and of
        their lines. A batch that cannot be read is left to ``run``, which tries again. Raises BusError."""
        await self._bus.ensure_streams()
        self.tools = self._make_tools(
            batches=await self._bus.bucket(subjects.BATCHES_BUCKET, BatchRecord),
            batch_keys=await self._bus.bucket(subjects.BATCH_KEYS_BUCKET, BatchKey),
            files=await self._bus.bucket(subjects.FILES_BUCKET, FileRecord),
            objects=await self._bus.objects(),
        )
        adoption = Adoption(self.tools, self._model_name)
        found = [record for entry in await self.tools.batches.entries() if (record := _at_work(entry)) is not None]
        records = [await adoption.adopt(record) for record in found]
        await self._spending.start()
        for record in records:
            if self._is_own(record):
                self._spending.note(record)
                self._lives[record.id] = BatchLife(self.tools, record)
            else:
                self._elsewhere[record.id] = record
        await self._admit()
        if self._lives:
            logger.info("batches recovered", extra={"batches": len(self._lives), "lines": self.stats().lines_open})

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for life in self._in_order():
                group.create_task(self._live(life))
            group.create_task(self._spending.run())
            group.create_task(self._watch_batches(group))
            group.create_task(self._end_unserved(group))
            results = self._of_model.all_results, OfflineResult, unreadable_result, BatchLife.add_result
            failures = self._of_model.all_failures, OfflineFailure, unreadable_failure, BatchLife.add_failure
            group.create_task(self._follow(*results))
            group.create_task(self._follow(*failures))

    async def stop(self) -> None:
        """At an end in order: what was counted is told. All else is on the bus."""
        await self._spending.ledger.stop()

    def is_being_read(self, file_id: str) -> bool:
        """It is the input of a batch, of any model, that has not been read in yet."""
        records = [*(life.record for life in self._lives.values()), *self._elsewhere.values()]
        return any(record.status == "validating" and record.input_file_id == file_id for record in records)

    def is_open(self, request_id: str) -> bool:
        """It is a request of a batch at work that has no result."""
        life = self._lives.get(request_id.rpartition(".")[0])
        return life is not None and life.is_open(line_of(request_id))

    async def add_losses(self, request_ids: list[str], reason: str) -> None:
        """The executor that ran these requests is gone: for each that is open, a failed run."""
        lost = [each for each in request_ids if self.is_open(each)]
        try:
            told = ((each, uuid.uuid4().hex) for each in lost)
            failures = [(self._of_model.failure(*each), OfflineFailure(each[0], reason)) for each in told]
            await self._bus.store_many(failures)
        except BusError as error:
            logger.warning("losses not counted", extra={"requests": len(lost), "why": str(error)})

    def give_up(self, request_id: str, error: RequestError) -> None:
        """No executor can run it: that is its result."""
        if self.is_open(request_id):
            failed = failed_result(request_id, error)
            self._lives[request_id.rpartition(".")[0]].give_up(line_of(request_id), failed.error)

    def share_of(self, batch_id: str) -> Share:
        """Whose the batch is, and how urgent; for an unknown one, nobody's."""
        life = self._lives.get(batch_id)
        if life is None:
            return Share()
        record = life.record
        pressing = urgency(self._clock.unix_s(), record.created_at, record.expires_at)
        return Share(record.client_id, record.client_weight, pressing)

    def stats(self) -> BatchStats:
        lives = list(self._lives.values())
        at_work = [life.progress for life in lives if life.progress is not None]
        return BatchStats(
            batches=len(lives),
            validating=sum(life.record.status == "validating" for life in lives),
            lines_open=sum(life.num_open for life in lives),
            lines_held=sum(progress.num_held for progress in at_work),
            held_bytes=self._room.held_bytes,
            lines_done=sum(progress.total - progress.num_open for progress in at_work),
        )

    def _queued_tokens(self, owner: str) -> int:
        own = sum(life.queued_tokens for life in self._lives.values() if life.record.owner == owner)
        return own + sum(record.queued_tokens for record in self._elsewhere.values() if record.owner == owner)

    def _is_own(self, record: BatchRecord) -> bool:
        return record.model_name == self._model_name

    def _in_order(self) -> list[BatchLife]:
        return sorted(self._lives.values(), key=lambda life: (life.record.created_at, life.record.id))

    async def _admit(self) -> None:
        """All that are at work, side by side: of thousands each waits for the bus some ten times. Who is before another
        one asks first for its place, so that no one waits for a turn behind those that have none."""
        turn = asyncio.Event()
        turn.set()
        async with asyncio.TaskGroup() as group:
            for life in self._in_order():
                own, turn = turn, asyncio.Event()
                group.create_task(_admit_in_turn(life, own, turn))

    async def _watch_batches(self, group: asyncio.TaskGroup) -> None:
        async for entry in self.tools.batches.watch():
            if entry is None:
                continue
            self._elsewhere.pop(entry.key, None)
            if (record := _at_work(entry)) is None:
                continue
            if not self._is_own(record):
                self._elsewhere[entry.key] = record
                continue
            life = self._lives.get(entry.key)
            if life is not None:
                await life.notice(record)
            elif record.status in OPEN_STATUSES:
                life = self._lives[entry.key] = BatchLife(self.tools, record)
                group.create_task(self._live(life))

    async def _end_unserved(self, group: asyncio.TaskGroup) -> None:
        """Of models that are none of the stack's, what is over."""
        unserved = UnservedBatches(self.tools, self._model_name, self._other_models)
        while True:
            try:
                waiting = [each for each in self._elsewhere.values() if each.id not in self._lives]
                for life in await unserved.ending(waiting):
                    self._lives[life.record.id] = life
                    group.create_task(self._live(life))
            except BusError as error:
                logger.warning("batches of other models not looked at", extra={"why": str(error)})
            check_cancelled()
            await asyncio.sleep(PERIOD_S)

    async def _live(self, life: BatchLife) -> None:
        """A batch whose step failed on the bus, or on a disk, tries again from what the bus holds; the others go on
        meanwhile."""
        batch_id, failed, delay_s = life.record.id, False, RETRY_S
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
                except (BusError, OSError) as error:
                    where = "bus" if isinstance(error, BusError) else "disk"
                    logger.warning(f"batch waits for the {where}", extra={"batch_id": batch_id, "why": str(error)})
                    failed = True
                    await self._bus.wait_reconnected(generation, delay_s)
                    delay_s = min(2 * delay_s, MAX_RETRY_S)
        finally:
            del self._lives[batch_id]
            self._room.at_work.pop(batch_id, None)

    async def _follow(
        self,
        subject: str,
        message_type: type[T],
        instead: Callable[[str], T],
        tell: Callable[[BatchLife, Stored[T]], None],
    ) -> None:
        async for stored in self._bus.follow(subjects.RESULTS_STREAM, subject, message_type, instead):
            if stored is None:
                continue
            batch_id = subjects.request_of(stored.subject).rpartition(".")[0]
            life = self._lives.get(batch_id)
            if life is not None and not life.is_clearing:
                tell(life, stored)
            else:
                await self._drop_late(batch_id, stored)

    async def _drop_late(self, batch_id: str, stored: Stored[T]) -> None:
        """What came of a request that was still running when its batch ended has no place any more. It is told once."""

        async def drop() -> None:
            if batch_id in self._lives or await self._is_cleared(batch_id):
                await self._bus.delete_stored(subjects.RESULTS_STREAM, stored.sequence)

        try:
            await self._bus.through_reconnects(drop)
        except NotFoundOnBusError:
            return
        except BusError as error:
            logger.warning("late result not deleted", extra={"subject": stored.subject, "why": str(error)})

    async def _is_cleared(self, batch_id: str) -> bool:
        entry = await self.tools.batches.get(batch_id)
        return entry.value is not None and entry.value.cleared


async def _admit_in_turn(life: BatchLife, turn: asyncio.Event, next_turn: asyncio.Event) -> None:
    with contextlib.suppress(Exception):  # its run will say so
        await life.admit(turn)
    await turn.wait()
    next_turn.set()


def _at_work(entry: Entry[BatchRecord]) -> BatchRecord | None:
    """Its record, where there is something left to do, and it is that of its key."""
    record = entry.value
    if record is None or record.cleared:
        return None
    if record.id != entry.key:
        logger.warning("a batch's record is not of its key", extra={"key": entry.key, "batch_id": record.id})
        return None
    return record
