"""Files and batches as they are kept: records in KV buckets, contents in the object bucket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, ClassVar, Generic, TypeVar

import msgspec

from shared.bus import Bucket, Objects
from shared.clock import Clock
from shared.errors import BusError, NotFoundOnBusError
from shared.openai.errors import RequestError
from shared.openai.objects import Page, created_s_of, is_well_formed, new_id
from shared.protocol.batches import Batch, BatchRecord, FileObject

CANCELLABLE = ("validating", "in_progress")

R = TypeVar("R", FileObject, BatchRecord)
Shown = TypeVar("Shown", FileObject, Batch)


@dataclass(frozen=True)
class RecordStore(Generic[R]):
    """What clients find by its id. ``noun``: what it is to them."""

    noun: ClassVar[str]
    records: Bucket[R]

    async def get(self, id: str, param: str | None = None) -> R:
        """Raises RequestError (404); ``param`` is the field that the id came in."""
        if is_well_formed(id):
            with contextlib.suppress(NotFoundOnBusError):
                record = (await self.records.get(id)).value
                if record is not None and self._is_shown(record):
                    return record
        raise RequestError(f"no such {self.noun}: {id}", param or f"{self.noun}_id", "not_found", 404)

    async def all(self) -> list[R]:
        records = [entry.value for entry in await self.records.entries()]
        return [record for record in records if record is not None and self._is_shown(record)]

    def _is_shown(self, record: R) -> bool:
        return True


@dataclass(frozen=True)
class FileStore(RecordStore[FileObject]):
    """A record exists only where its contents do. An expired file is not shown; the offline-queue deletes it."""

    noun = "file"
    objects: Objects
    clock: Clock

    async def create(self, filename: str, contents: BinaryIO, expires_after_s: int | None) -> FileObject:
        """Of a batch's input: store the contents, then the record. Raises BusError; then nothing is left behind."""
        now_s = self.clock.unix_s()
        file_id, created_at = new_id("file-", now_s), int(now_s)
        size = await self.objects.put(file_id, contents)
        expires_at = None if expires_after_s is None else created_at + expires_after_s
        record = FileObject(file_id, size, created_at, filename, "batch", expires_at)
        try:
            await self.records.create(file_id, record)
        except BusError:
            await self.objects.delete(file_id)
            raise
        return record

    async def delete(self, file_id: str) -> None:
        """Raises RequestError (404)."""
        await self.get(file_id)
        await self.records.delete(file_id)
        await self.objects.delete(file_id)

    def chunks(self, record: FileObject) -> AsyncIterator[bytes]:
        """The contents, as far as the record says: an output may still grow. Raises NotFoundOnBusError and BusError."""
        return self.objects.chunks(record.id, record.bytes)

    def _is_shown(self, record: FileObject) -> bool:
        return record.expires_at is None or record.expires_at > self.clock.unix_s()


class BatchStore(RecordStore[BatchRecord]):
    """The offline-queue, which carries batches to their end, writes them too: every change is a compare-and-set."""

    noun = "batch"

    async def cancel(self, batch_id: str, now_s: int) -> BatchRecord:
        """The batch, cancelling from here on. Raises RequestError (404, or 400 where it has ended)."""
        await self.get(batch_id)

        def cancelling(record: BatchRecord) -> BatchRecord:
            if record.status == "cancelling":
                return record
            if record.status not in CANCELLABLE:
                message = f"a batch whose status is {record.status!r} cannot be cancelled"
                raise RequestError(message, "batch_id", "batch_not_cancellable")
            return msgspec.structs.replace(record, status="cancelling", cancelling_at=now_s)

        return await self.records.edit(batch_id, cancelling)


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
