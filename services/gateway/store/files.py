"""Files: records in a KV bucket, contents in the object bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import BinaryIO

from shared.bus import Bucket, Bus, Objects
from shared.clock import Clock
from shared.errors import BusError, NotFoundOnBusError
from shared.openai.errors import not_found
from shared.openai.ids import is_well_formed, new_id
from shared.protocol import subjects
from shared.protocol.batches import FileObject


class FileStore:
    """A record exists only where its contents do. A file that has expired is not shown; the offline-queue deletes
    it."""

    def __init__(self, records: Bucket[FileObject], objects: Objects, clock: Clock) -> None:
        self._records = records
        self._objects = objects
        self._clock = clock

    @classmethod
    async def open(cls, bus: Bus, clock: Clock) -> FileStore:
        return cls(await bus.bucket(subjects.FILES_BUCKET, FileObject), await bus.objects(), clock)

    async def create(
        self, filename: str, purpose: str, contents: BinaryIO, created_s: float, expires_after_s: int | None
    ) -> FileObject:
        """Store the contents, then the record. Raises BusError; then nothing is left behind."""
        file_id = new_id("file-", created_s)
        size = await self._objects.put(file_id, contents)
        record = FileObject(
            id=file_id,
            bytes=size,
            created_at=int(created_s),
            filename=filename,
            purpose=purpose,
            expires_at=None if expires_after_s is None else int(created_s) + expires_after_s,
        )
        try:
            await self._records.create(file_id, record)
        except BusError:
            await self._objects.delete(file_id)
            raise
        return record

    async def get(self, file_id: str, param: str = "file_id") -> FileObject:
        """Raises RequestError (404)."""
        if not is_well_formed(file_id):
            raise not_found("file", file_id, param)
        try:
            entry = await self._records.get(file_id)
        except NotFoundOnBusError as error:
            raise not_found("file", file_id, param) from error
        if entry.value is None or not self._is_shown(entry.value):
            raise not_found("file", file_id, param)
        return entry.value

    async def all(self) -> list[FileObject]:
        records = [entry.value for entry in await self._records.entries() if entry.value is not None]
        return [record for record in records if self._is_shown(record)]

    async def delete(self, file_id: str) -> None:
        """Raises RequestError (404)."""
        await self.get(file_id)
        await self._records.delete(file_id)
        await self._objects.delete(file_id)

    def chunks(self, record: FileObject) -> AsyncIterator[bytes]:
        """The contents, piece by piece; of a batch's output that still grows, as much as the record says. Raises
        NotFoundOnBusError and BusError."""
        return self._objects.chunks(record.id, record.bytes)

    def _is_shown(self, record: FileObject) -> bool:
        return record.expires_at is None or record.expires_at > self._clock.unix_s()
