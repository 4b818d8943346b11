"""One batch from its record to its end."""

import asyncio
import errno
import logging

from msgspec.structs import replace

from services.offline_queue.batches import records as batch_records
from services.offline_queue.batches.feed import BatchFeed
from services.offline_queue.batches.files import BatchOutputs, file_names
from services.offline_queue.batches.ingest import BatchIngestion, store_again
from services.offline_queue.batches.lines import line_of
from services.offline_queue.batches.progress import BatchProgress
from services.offline_queue.batches.records import Change
from services.offline_queue.batches.results import out_of_budget, own_result, unreadable_failure, unreadable_result
from services.offline_queue.batches.token_quota import over_token_quota
from services.offline_queue.batches.tools import BatchTools
from shared.bus import Stored
from shared.cancellation import wait_set
from shared.clock import Deadline
from shared.errors import BusError, NotFoundOnBusError
from shared.protocol import subjects
from shared.protocol.access.key_usage import day_of
from shared.protocol.offline.batches import OPEN_STATUSES, BatchRecord, LineError
from shared.protocol.offline.requests import OfflineFailure, OfflineResult
from shared.protocol.sampling import ENDS_WELL, FinishReason

logger = logging.getLogger(__name__)

PROGRESS_S = 0.25  # the record is written at most so often while results come
RECHECK_S = 60.0  # the clock that expiry goes by may be set while we wait
GROUP_DELETES = 256
GROUP_DISCARDS = 512  # some milliseconds
GROUP_RESULTS = 256
AT_WORK = ("in_progress", "finalizing")  # finalizing: to see whether it still has every result
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # on a disk, or in this user's part of it
NO_MORE_FILES = (errno.EMFILE, errno.ENFILE)  # for this process, or on this machine
NO_FOLDER = (errno.ENOENT,)  # where Python tries one for temporary files, it says so for each of the others as well
MAY_PASS = NO_ROOM + NO_MORE_FILES + NO_FOLDER  # temporary files may be had again
LOST_WITH_INPUT = "the store has lost the request, and its input file is gone"


class BatchLife:
    """Drives one batch through its states. All that counts is in the bus: a new life made from the record, in this
    process or the next, goes on where the old one ended, and repeating a step that was cut short changes nothing."""

    def __init__(self, tools: BatchTools, record: BatchRecord) -> None:
        self.record: BatchRecord
        self.progress: BatchProgress | None = None  # from admission on
        self.is_clearing = False  # what comes into the stream from here on, nobody needs, and no purge may see
        self._tools = tools
        self._window = Deadline(tools.clock, record.expires_at)
        self._feed: BatchFeed | None = None  # from admission on
        self._changed = asyncio.Event()  # results came, or the end
        self._urgent = asyncio.Event()  # the end, or the pool needs more of its requests
        self._over = asyncio.Event()  # no result is open, or the batch was cancelled
        self._held_before: dict[str, None] = {}  # what the pool may hold since before a restart
        self._outputs: BatchOutputs | None = None  # from admission on
        self._arrived: list[OfflineResult] = []  # not in the files yet
        self._given_up: dict[int, str] = {}  # error, by line; to be stored as the line's result
        self._is_cancelled = False
        self._is_out_of_budget = False
        self._queued_tokens = record.queued_tokens  # as long as there is no progress
        self._know(record)
        if record.status == "cancelling":
            self._cancel()

    @property
    def queued_tokens(self) -> int:
        """Of the requests without a result that are known so far: prompts and longest answers."""
        return self._queued_tokens if self.progress is None else self.progress.open_tokens

    @property
    def num_open(self) -> int:
        """Lines that are to have a result yet."""
        return 0 if self.progress is None or self._over.is_set() else self.progress.num_open

    async def notice(self, record: BatchRecord) -> None:
        """The record was written by anyone; a cancellation takes effect at once."""
        if record.status == "cancelling" and not self._is_cancelled:
            self._cancel()
            await self._discard_held()

    def add_result(self, stored: Stored[OfflineResult]) -> None:
        """A result is in the stream, perhaps again. Before admission nothing is done: admission reads all results."""
        result = own_result(stored)
        if self.progress is None or not self.progress.add_result(line_of(result.request_id), result):
            return
        self._arrived.append(result)
        if result.finish_reason in ENDS_WELL:  # where the executor's step message is later than this
            self._tools.pool.learn(result.request_id, len(result.choices[-1].token_ids))
        self._tools.pool.discard([result.request_id])
        self._changed.set()
        if not self.progress.num_open:
            self._end_work()
        elif self._feed is not None and self._feed.is_low:
            self._urgent.set()

    def add_failure(self, stored: Stored[OfflineFailure]) -> None:
        """A failed run is in the stream; as ``add_result``."""
        if self.progress is None:
            return
        request_id = subjects.request_of(stored.subject)
        line = line_of(request_id)
        num_failures = self.progress.add_failure(line, stored.sequence)
        if num_failures < self._tools.max_failures:
            self._tools.pool.retry(request_id, num_failures)
            return
        self.give_up(line, f"given up after {num_failures} failed runs; the last: {stored.message.reason}")

    def give_up(self, line: int, error: str) -> None:
        """No run of it will give a result; ``error``: as its result has it."""
        self._given_up[line] = error
        self._changed.set()

    def is_open(self, line: int) -> bool:
        """The batch is at work, and the line is one of its own that has no result."""
        return self.progress is not None and not self._over.is_set() and self.progress.is_open(line)

    async def run(self) -> None:
        """To the end, or to a BusError, or an OSError that may pass (a full disk, too many open files); ``restart`` is
        next. What else goes wrong fails the batch. Raises NotFoundOnBusError where the record is gone."""
        try:
            if self.record.status == "validating":
                await self._ingest()
            if self.record.status in AT_WORK:
                await self._work()
            if self.record.status in batch_records.ENDING:
                await self._end()
            self._require_ended()
            await self._clear()
        except NotFoundOnBusError as error:
            logger.error("batch has lost its data", extra={"batch_id": self.record.id, "missing": str(error)})
            await self._fail("The stored data of this batch is lost. Submit it again.")
        except BusError:
            raise
        except Exception as error:  # the other batches go on
            if isinstance(error, OSError) and error.errno in MAY_PASS:
                raise
            logger.exception("batch cannot go on", extra={"batch_id": self.record.id})
            await self._fail(f"The server cannot go on with this batch: {error}")

    async def restart(self) -> None:
        """After such an error, before ``run`` is called again: forget all the bus knows better. Raises BusError, as
        NotFoundOnBusError where the record is gone."""
        self._forget()
        self.is_clearing = False
        if not self._is_cancelled:
            self._over.clear()
        try:
            await self._reload()
        except NotFoundOnBusError:  # nobody asks for what it had in the pool
            await self._discard_held()
            raise

    async def admit(self, turn: asyncio.Event | None = None) -> None:
        """Learn what is done, and hand the rest to the pool, as far as there is room, from its ``turn`` on. Does
        nothing for a batch that is not at work, or was admitted. Raises BusError; then it can be called again."""
        if self.record.status in AT_WORK and self.progress is None:
            async with self._tools.admissions:
                await self._admit(turn)

    async def _admit(self, turn: asyncio.Event | None) -> None:
        bus, of_model, batch_id = self._tools.bus, self._tools.of_model, self.record.id
        progress = BatchProgress(batch_id, self._tools.room)
        try:
            self._outputs = await BatchOutputs.open(self._tools, self.record, progress.add_line)
            self.progress = progress  # before the results are read: the next one may come to add_result first
            self._feed = BatchFeed(self._tools, progress, self.give_up)
            results = of_model.batch_results(batch_id), OfflineResult, unreadable_result
            async for result in bus.read(subjects.RESULTS_STREAM, *results):
                self.add_result(result)
                if len(self._arrived) >= GROUP_RESULTS:
                    await self._write_arrived()
            async for number, counts in self._outputs.written_alone(lambda number: not progress.is_open(number)):
                progress.add_counts(number, counts)
            failures = of_model.batch_failures(batch_id), OfflineFailure, unreadable_failure
            async for failure in bus.read(subjects.RESULTS_STREAM, *failures):
                self.add_failure(failure)
            if not self._is_expired():
                await self._feed.fill(lambda: self._is_cancelled, turn)
        except Exception:
            self._forget()
            raise

    def _cancel(self) -> None:
        self._is_cancelled = True
        self._end_work()

    def _end_work(self) -> None:
        self._over.set()
        self._changed.set()
        self._urgent.set()

    async def _ingest(self) -> None:
        ingested = BatchIngestion(self._tools, self.record, self._over, self._is_expired, self._check_tokens)
        try:
            await ingested.run()
        except NotFoundOnBusError:
            raise
        except (BusError, OSError):
            if self._is_cancelled or not self._is_expired():
                raise
            await self._edit(batch_records.expired(self._now_s()))
            return
        if ingested.errors:
            await self._edit(batch_records.failed(ingested.errors, self._now_s()))
        elif self._is_cancelled:
            await self._reload()
        else:
            counted, model = (ingested.total, ingested.num_tokens), self._tools.model.only(self.record.adapter)
            await self._edit(batch_records.started(*counted, model.name, self._now_s()))
        became = {"batch_id": self.record.id, "status": self.record.status, "lines": ingested.total}
        logger.info("batch ingested", extra=became)

    def _check_tokens(self, num_tokens: int) -> LineError | None:
        """Of the lines that are read so far."""
        self._queued_tokens = num_tokens
        too_many = over_token_quota(self._tools, self.record, num_tokens)
        if too_many is not None:
            self._queued_tokens = 0  # none of it will run, so it is in no other batch's way
        return too_many

    async def _work(self) -> None:
        """Follow the results until none is open, or the batch is cancelled or expires."""
        await self.admit()
        progress, feed, outputs = self.progress, self._feed, self._outputs
        assert progress is not None and feed is not None and outputs is not None
        if progress.num_open:
            await self._edit(batch_records.reopened)
        else:
            self._end_work()
        while not self._over.is_set() and not self._is_expired():
            if not feed.is_low:
                await wait_set(self._changed, min(RECHECK_S, self._window.left_s()))
            self._changed.clear()  # before anything is written: what comes from here on is written next time
            await self._store_given_up()
            await feed.fill(self._over.is_set)
            if feed.is_exhausted and progress.num_open > progress.num_held and not self._over.is_set():
                await self._store_again(progress.never_held())
                feed.start_over()
            await self._write_progress(progress)
            self._keep_to_budget(progress)
            if not self._over.is_set() and not feed.is_low:
                self._urgent.clear()
            await wait_set(self._urgent, PROGRESS_S)
        has_begun_to_end = self._is_expired() and outputs.tells_of_not_run
        if not progress.num_open and not has_begun_to_end:
            await self._edit(batch_records.finalizing(progress.counts, self._now_s()))
            return
        self._end_work()
        await self._discard_held()
        await self._reload()

    def _keep_to_budget(self, progress: BatchProgress) -> None:
        """What has no result fails where the key has no tokens left, once, as each request of its own would."""
        spent = self._tools.spending.spent_budget(self.record.client_id)
        if spent is None or self._is_out_of_budget:
            return
        self._is_out_of_budget = True
        lines = progress.open_lines()
        self._given_up |= dict.fromkeys(lines, out_of_budget(spent.message))
        self._changed.set()
        ids = {"batch_id": self.record.id, "client_id": self.record.client_id}
        logger.warning("batch is out of its key's budget", extra={**ids, "lines": len(lines)})

    async def _write_arrived(self) -> None:
        """Into the files; they are complete only with ``finish``, which looks at the stream."""
        assert self._outputs is not None
        arrived, self._arrived = self._arrived, []
        await self._outputs.add(arrived)

    async def _store_again(self, lines: list[int]) -> None:
        """These are open, and their requests are not in the stream: the store lost them, or their results."""
        logger.warning("requests lost, stored again", extra={"batch_id": self.record.id, "lines": len(lines)})
        try:
            errors = await store_again(self._tools, self.record, lines)
            self._given_up |= {error.line: error.message for error in errors if error.line is not None}
        except NotFoundOnBusError:
            self._given_up |= dict.fromkeys(lines, LOST_WITH_INPUT)

    async def _store_given_up(self) -> None:
        """As any other results, so that a restart knows of them, and the first result stays."""
        given_up = list(self._given_up.items())
        for start in range(0, len(given_up), GROUP_RESULTS):
            group = given_up[start : start + GROUP_RESULTS]
            results = [
                OfflineResult(f"{self.record.id}.{line}", [], FinishReason.ERROR, error=error) for line, error in group
            ]
            await self._tools.bus.store_many([(self._tools.of_model.result(each.request_id), each) for each in results])
            for line, _ in group:
                del self._given_up[line]

    async def _write_progress(self, progress: BatchProgress) -> None:
        """Files get results, requests with durable ones are deleted, the record shows the counts: all of one moment."""
        counts, done = progress.counts, progress.take_done_requests()
        await self._write_arrived()
        for start in range(0, len(done), GROUP_DELETES):
            group = done[start : start + GROUP_DELETES]
            await asyncio.gather(*(self._tools.bus.delete_stored(subjects.REQUESTS_STREAM, each) for each in group))
        await self._edit(batch_records.progressed(counts, progress.open_tokens))

    async def _end(self) -> None:
        """Write the files, then the final status."""
        end = batch_records.ended(self.record.status, batch_records.BatchCounts(), None, None, self._now_s())
        if self.record.in_progress_at is not None:  # all its lines are stored; before that, nothing of it counts
            outputs = self._outputs or await BatchOutputs.open(self._tools, self.record)
            end = await outputs.finish(self.record, self._now_s())
        await self._edit(end)

    async def _fail(self, why: str) -> None:
        """What is in the files by now stays."""
        await self._discard_held()
        await self._tools.clear(self.record.id)
        output, errors = [await self._kept(name) for name in file_names(self.record.id)]
        await self._edit(batch_records.broken(why, output, errors, self._now_s()))
        await self._clear()

    async def _kept(self, file_id: str) -> str | None:
        """It stays as it is, as long as that of a batch which has ended; None where there is none."""
        lifetime_s = self.record.output_expires_after_s
        expires_at = None if lifetime_s is None else self._now_s() + lifetime_s
        try:
            await self._tools.files.edit(file_id, lambda file: replace(file, expires_at=expires_at))
        except NotFoundOnBusError:
            return None
        return file_id

    def _forget(self) -> None:
        """What admission learns anew. The pool keeps the requests."""
        self._close_outputs()
        if self.progress is not None:
            self._held_before |= dict.fromkeys(self.progress.take_held())
            self._queued_tokens = self.progress.open_tokens
        self.progress = self._feed = None

    def _close_outputs(self) -> None:
        if self._outputs is not None:
            self._outputs.close()
        self._outputs, self._arrived = None, []

    async def _clear(self) -> None:
        """Only now nothing is needed any more of what the streams hold."""
        self._close_outputs()
        self.is_clearing = True
        await self._tools.clear(self.record.id)
        self._tools.spending.note(self.record)
        await self._tools.spending.ledger.flush()
        await self._edit(batch_records.cleared)
        self._require_ended()
        logger.info("batch ended", extra={"batch_id": self.record.id, "status": self.record.status})

    def _require_ended(self) -> None:
        """Raises BusError where the store has lost its end: it is to come to one again."""
        if self.record.status in OPEN_STATUSES:
            raise BusError(f"the store has lost a change of {self.record.id}: it is {self.record.status} again")

    async def _reload(self) -> None:
        await self._edit(batch_records.cancelling(self._now_s()) if self._is_cancelled else lambda record: record)

    async def _edit(self, change: Change) -> None:
        """Of the record, begun as it is known here where the store has lost that."""
        today, begun = day_of(self._tools.clock.unix_s()), batch_records.begun_as(self.record)
        whole = batch_records.counted(lambda record: change(begun(record)), today)
        self._know(await self._tools.batches.edit(self.record.id, whole))
        self._tools.spending.note(self.record)
        await self.notice(self.record)

    def _know(self, record: BatchRecord) -> None:
        """As it was read or written last."""
        self.record = record
        if record.status == "in_progress":
            self._tools.room.at_work[record.id] = None
        else:
            self._tools.room.at_work.pop(record.id, None)

    async def _discard_held(self) -> None:
        """In groups, so that others are planned for meanwhile."""
        held, self._held_before = list(self._held_before), {}
        if self.progress is not None:
            held += self.progress.take_held()
        for start in range(0, len(held), GROUP_DISCARDS):
            self._tools.pool.discard(held[start : start + GROUP_DISCARDS])
            await asyncio.sleep(0)

    def _is_expired(self) -> bool:
        return self._window.left_s() <= 0

    def _now_s(self) -> int:
        return int(self._tools.clock.unix_s())
