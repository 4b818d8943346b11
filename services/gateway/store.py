"""Files and batches as they are kept: records in KV buckets, contents in the object bucket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, ClassVar, Generic, TypeVar

from msgspec.structs import replace

from services.gateway.batch_keys import BatchKeys, earlier_ids, place_of
from services.gateway.tenants import Tenant
from shared.bus import NEVER_WRITTEN, Bucket, Objects
from shared.cancellation import check_cancelled
from shared.clock import Clock
from shared.errors import BusError, ConflictError, NoRoomOnBusError, NotFoundOnBusError
from shared.openai.errors import RequestError
from shared.openai.objects import Page, created_s_of, is_well_formed
from shared.protocol.offline.batches import OPEN_STATUSES, WITHDRAWN, Batch, BatchRecord, FileObject, FileRecord

logger = logging.getLogger(__name__)

CANCELLABLE = ("validating", "in_progress")
FROM_CLIENT = ("endpoint", "input_file_id", "completion_window", "metadata", "output_expires_after_s")
WITHDRAW_RETRY_S = 1.0

R = TypeVar("R", FileRecord, BatchRecord)
Shown = TypeVar("Shown", FileObject, Batch)
Admit = Callable[[BatchRecord], AbstractAsyncContextManager[None]]


def _admit_all(record: BatchRecord) -> AbstractAsyncContextManager[None]:
    return contextlib.nullcontext()


@dataclass(frozen=True)
class RecordStore(Generic[R]):
    """What clients find by its id: of each its own, as its tenant sees it. ``noun``: what it is to them. What could not
    be created for sure may come to be when the bus is back, though its client was told otherwise: ``run`` withdraws
    it."""

    noun: ClassVar[str]
    records: Bucket[R]
    clock: Clock
    _doubtful: asyncio.Queue[R] = field(default_factory=asyncio.Queue, init=False)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            check_cancelled()
            record = await self._doubtful.get()
            if not await self._try_withdraw(record):
                self._doubtful.put_nowait(record)
                await asyncio.sleep(WITHDRAW_RETRY_S)

    async def get(self, id: str, tenant: Tenant, param: str | None = None) -> R:
        """Raises RequestError (404), the same of an absent one and of another's; ``param`` is the field that the id
        came in."""
        if is_well_formed(id):
            with contextlib.suppress(NotFoundOnBusError):
                record = (await self.records.get(id)).value
                if record is not None and self._is_shown(record) and tenant.sees(record):
                    return record
        raise RequestError(f"no such {self.noun}: {id}", param or f"{self.noun}_id", "not_found", 404)

    async def seen_by(self, tenant: Tenant) -> list[R]:
        """In no order that counts."""
        return [record for record in await self.all() if tenant.sees(record)]

    async def all(self) -> list[R]:
        """Of everybody."""
        records = [entry.value for entry in await self.records.entries()]
        return [record for record in records if record is not None and self._is_shown(record)]

    async def _try_withdraw(self, record: R) -> bool:
        """False where it is to be tried again later."""
        try:
            await self._withdraw(record)
        except BusError as error:
            logger.warning("not withdrawn yet", extra={"id": record.id, "why": str(error)})
            return False
        logger.info("withdrawn", extra={"id": record.id})
        return True

    @abstractmethod
    async def _withdraw(self, record: R) -> None:
        """What ``create`` was told to write, whether it is there, comes later or never. Raises BusError."""

    @abstractmethod
    def _is_shown(self, record: R) -> bool: ...


@dataclass(frozen=True)
class FileStore(RecordStore[FileRecord]):
    """A record exists only where its contents do. An expired file is not shown; the offline-queue deletes it."""

    noun = "file"
    objects: Objects

    async def create(self, record: FileRecord, contents: BinaryIO) -> None:
        """Store the contents, then the record. Raises BusError; then nothing stays behind."""
        await self.objects.put(record.id, contents)
        try:
            await self.records.create(record.id, record)
        except BusError:
            self._doubtful.put_nowait(record)
            raise

    async def delete(self, file_id: str, tenant: Tenant) -> None:
        """Raises RequestError (404) and BusError."""
        await self.get(file_id, tenant)
        await self._remove(file_id)
        await self._hide_without_bytes(file_id)

    def chunks(self, record: FileRecord) -> AsyncIterator[bytes]:
        """The contents, as far as the record says: an output may still grow. Raises NotFoundOnBusError and BusError."""
        return self.objects.chunks(record.id, record.bytes)

    async def _withdraw(self, record: FileRecord) -> None:
        await self._remove(record.id)  # also an absent one: where a deletion is, no creation lands

    async def _remove(self, file_id: str) -> None:
        """A bus without room has room for that: what the file held."""
        try:
            await self.records.delete(file_id)
        except NoRoomOnBusError:
            await self.objects.empty(file_id)
            await self.records.delete(file_id)
        await self.objects.delete(file_id)

    async def _hide_without_bytes(self, file_id: str) -> None:
        """The record of a batch's output which the offline-queue, that still wrote it, has shown again before it could
        see that the bytes were gone. One that it writes anew has its bytes before its record."""
        with contextlib.suppress(NotFoundOnBusError, ConflictError):
            entry = await self.records.get(file_id)
            try:
                await anext(self.objects.chunks(file_id), b"")
            except NotFoundOnBusError:
                await self.records.delete(file_id, entry.revision)

    def _is_shown(self, record: FileRecord) -> bool:
        return record.expires_at is None or record.expires_at > self.clock.unix_s()


@dataclass(frozen=True)
class BatchStore(RecordStore[BatchRecord]):
    """The offline-queue, which carries batches to their end, writes them too: every change is a compare-and-set."""

    noun = "batch"
    keys: BatchKeys

    async def create(self, record: BatchRecord, key: str | None, admit: Admit = _admit_all) -> BatchRecord:
        """The batch as it is now: a new one, or that which its owner has made with this idempotency key before. A new
        one of a key has an id of its own, whatever the record's; it is written within ``admit``, which is told it.
        Raises what that raises, RequestError where the key was used for another batch, and BusError; then a new batch
        is withdrawn."""
        record = replace(record, claim=secrets.token_hex(8))
        if key is None:
            async with admit(record):
                if not await self._write(record):
                    raise ConflictError(record.id)
            return record
        place = place_of(_key_owner(record), key)
        while True:
            record = _with_id(record, await self.keys.claim(place))
            made = await self._made(record, admit)
            if made is not None:
                return made
            await self.keys.free(place, record.id)

    async def repeated(self, asked: BatchRecord, key: str) -> BatchRecord | None:
        """What its owner has made with this idempotency key before, whatever has changed since; None where there is
        nothing. Raises RequestError where the key was used for another batch, and BusError."""
        owner = _key_owner(asked)
        batch_id = await self.keys.batch_of(place_of(owner, key))
        for id in earlier_ids(owner, key) if batch_id is None else (batch_id,):
            record = replace(asked, id=id)
            found = await self._made_before(record)
            if found is None or _is_answer(found, record):
                return found
        return None

    async def _made(self, record: BatchRecord, admit: Admit) -> BatchRecord | None:
        """The batch that has this id by now; None where it is gone, or withdrawn."""
        found = await self._made_before(record)
        if found is None:
            async with admit(record):
                if await self._write(record):
                    return record
            found = await self._made_before(record)
        return found if found is not None and _is_answer(found, record) else None

    async def _made_before(self, record: BatchRecord) -> BatchRecord | None:
        """The batch in its place, which a repetition has confirmed now; None where there is none."""
        try:
            return await self.records.edit(record.id, partial(_confirmed, record))
        except NotFoundOnBusError:
            return None

    async def _write(self, record: BatchRecord) -> bool:
        """False where another one has come to its place, be it gone again: files of its may be left. Raises
        BusError."""
        try:
            await self.records.update(record.id, record, NEVER_WRITTEN)
        except ConflictError:
            return False
        except BusError:
            self._doubtful.put_nowait(record)
            raise
        return True

    async def cancel(self, batch_id: str, tenant: Tenant) -> BatchRecord:
        """The batch, cancelling from here on. Raises RequestError (404, or 400 where it has ended)."""
        await self.get(batch_id, tenant)

        def cancelling(record: BatchRecord) -> BatchRecord:
            if record.status == "cancelling":
                return record
            if record.status not in CANCELLABLE:
                message = f"a batch whose status is {record.status!r} cannot be cancelled"
                raise RequestError(message, "batch_id", "batch_not_cancellable")
            return replace(record, status="cancelling", cancelling_at=int(self.clock.unix_s()))

        return await self.records.edit(batch_id, cancelling)

    async def delete(self, batch_id: str, tenant: Tenant) -> BatchRecord:
        """The batch as it was, which is not shown any more; its record goes once nothing is left of it in the streams.
        Raises RequestError (404, or 400 where it has not ended)."""
        found = await self.get(batch_id, tenant)

        def hidden(record: BatchRecord) -> BatchRecord:
            if record.status in OPEN_STATUSES:
                message = f"a batch whose status is {record.status!r} cannot be deleted; cancel it first"
                raise RequestError(message, "batch_id", "batch_not_ended")
            return replace(record, claim=WITHDRAWN)

        if (await self.records.edit(batch_id, hidden)).cleared:
            await self.records.delete(batch_id)
        return found

    async def is_reading(self, file_id: str) -> bool:
        """Some batch, whosever it is, still has to read in this file."""
        return any(each.status == "validating" and each.input_file_id == file_id for each in await self.all())

    async def _withdraw(self, record: BatchRecord) -> None:
        now_s = int(self.clock.unix_s())

        def withdrawn(found: BatchRecord) -> BatchRecord:
            if found.claim != record.claim or found.status not in CANCELLABLE:
                return found  # a repetition has made or confirmed it, or it is too late
            return replace(found, status="cancelling", cancelling_at=now_s, claim=WITHDRAWN)

        try:  # in its place, so that it does not land any more
            ended = replace(record, status="cancelled", cancelled_at=now_s, cleared=True, claim=WITHDRAWN)
            await self.records.create(record.id, ended)
        except ConflictError:
            await self.records.edit(record.id, withdrawn)

    def _is_shown(self, record: BatchRecord) -> bool:
        return not record.is_withdrawn


def page(records: Sequence[Shown], after: str | None, limit: int, newest_first: bool = True) -> Page[Shown]:
    """At most ``limit`` that follow the id ``after``, which may be gone by now. Raises RequestError if it never was."""
    ordered = sorted(records, key=_key, reverse=newest_first)
    if after is not None:
        created_at = {record.id: record.created_at for record in records}.get(after, created_s_of(after))
        if created_at is None:
            raise RequestError(f"after: no such id: {after}", "after")
        place = created_at, after
        ordered = [record for record in ordered if (_key(record) < place if newest_first else _key(record) > place)]
    data = ordered[:limit]
    first_id, last_id = (data[0].id, data[-1].id) if data else (None, None)
    return Page(data, first_id, last_id, has_more=limit < len(ordered))


def _key(record: FileObject | Batch) -> tuple[int, str]:
    return record.created_at, record.id


def _is_answer(found: BatchRecord, asked: BatchRecord) -> bool:
    """Who asked for a batch may be shown this one."""
    return not found.is_withdrawn and found.owner == asked.owner


def _confirmed(asked: BatchRecord, found: BatchRecord) -> BatchRecord:
    """What is found where a batch was to be written. Raises RequestError where its owner has asked for another one."""
    if not _is_answer(found, asked):
        return found
    if any(getattr(found, name) != getattr(asked, name) for name in FROM_CLIENT):
        message = f"this Idempotency-Key was used for another batch: {found.id}"
        raise RequestError(message, "Idempotency-Key", "idempotency_key_reused")
    return replace(found, claim="")


def _key_owner(record: BatchRecord) -> str:
    """Whose an idempotency key is that comes with it."""
    return record.owner or record.client_id


def _with_id(record: BatchRecord, id: str) -> BatchRecord:
    """With the time of creation that is in the id, as that of every batch."""
    return replace(record, id=id, created_at=created_s_of(id) or record.created_at)
