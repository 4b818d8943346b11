"""Batches: records that the gateway creates and the offline-queue carries to their end."""

from __future__ import annotations

import msgspec

from shared.bus import Bucket, Bus
from shared.errors import NotFoundOnBusError
from shared.openai.errors import RequestError, not_found
from shared.openai.ids import is_well_formed
from shared.protocol import subjects
from shared.protocol.batches import BatchRecord

CANCELLABLE = ("validating", "in_progress")


class BatchStore:
    """Every change is a compare-and-set, since the offline-queue writes the same records."""

    def __init__(self, records: Bucket[BatchRecord]) -> None:
        self._records = records

    @classmethod
    async def open(cls, bus: Bus) -> BatchStore:
        return cls(await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord))

    async def create(self, record: BatchRecord) -> None:
        await self._records.create(record.id, record)

    async def get(self, batch_id: str) -> BatchRecord:
        """Raises RequestError (404)."""
        if not is_well_formed(batch_id):
            raise not_found("batch", batch_id, "batch_id")
        try:
            entry = await self._records.get(batch_id)
        except NotFoundOnBusError as error:
            raise not_found("batch", batch_id, "batch_id") from error
        assert entry.value is not None
        return entry.value

    async def all(self) -> list[BatchRecord]:
        return [entry.value for entry in await self._records.entries() if entry.value is not None]

    async def cancel(self, batch_id: str, now_s: int) -> BatchRecord:
        """The batch, cancelling from here on. Raises RequestError (404, or 400 where it has ended)."""
        await self.get(batch_id)

        def cancelling(record: BatchRecord) -> BatchRecord:
            if record.status == "cancelling":
                return record
            if record.status not in CANCELLABLE:
                raise RequestError(
                    f"a batch whose status is {record.status!r} cannot be cancelled",
                    "batch_id",
                    "batch_not_cancellable",
                )
            return msgspec.structs.replace(record, status="cancelling", cancelling_at=now_s)

        return await self._records.edit(batch_id, cancelling)
