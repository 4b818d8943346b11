"""Files: records in a KV bucket, contents in the object bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import BinaryIO

from services.gateway.errors import not_found
from shared.bus import Bucket, Bus, Objects
from shared.errors import BusError, NotFoundOnBusError
from shared.openai.ids import is_well_formed, new_id
from shared.protocol import subjects
from shared.protocol.messages import FileRecord


class FileStore:
    """A record exists only where its contents do."""

    def __init__(self, records: Bucket[FileRecord], objects: Objects) -> None:
        self._records = records
        self._objects = objects

    @classmethod
    async def open(cls, bus: Bus) -> FileStore:
        return cls(await bus.bucket(subjects.FILES_BUCKET, FileRecord), await bus.objects())

    async def create(
        self, filename: str, purpose: str, contents: BinaryIO, created_s: float, expires_after_s: int | None
    ) -> FileRecord:
        """Store the contents, then the record. Raises BusError; then nothing is left behind."""
        file_id = new_id("file-", created_s)
        size = await self._objects.put(file_id, contents)
        record = FileRecord(
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

    async def get(self, file_id: str, param: str = "file_id") -> FileRecord:
        """Raises RequestError (404)."""
        if not is_well_formed(file_id):
            raise not_found("file", file_id, param)
        try:
            entry = await self._records.get(file_id)
        except NotFoundOnBusError as error:
            raise not_found("file", file_id, param) from error
        assert entry.value is not None
        return entry.value

    async def all(self) -> list[FileRecord]:
        return [entry.value for entry in await self._records.entries() if entry.value is not None]

    async def delete(self, file_id: str) -> None:
        """Raises RequestError (404)."""
        await self.get(file_id)
        await self._records.delete(file_id)
        await self._objects.delete(file_id)

    def chunks(self, file_id: str) -> AsyncIterator[bytes]:
        """The contents, piece by piece. Raises NotFoundOnBusError and BusError."""
        return self._objects.chunks(file_id)
