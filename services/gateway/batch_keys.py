"""Which batch an Idempotency-Key stands for, as the bus keeps it: a key is claimed before its batch is written."""

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from msgspec.structs import replace

from shared.bus import Bucket
from shared.clock import Clock
from shared.errors import BusError, ConflictError, NotFoundOnBusError
from shared.openai.objects import new_id
from shared.protocol.offline.batches import BatchKey

MOST_TRIES = 20  # at a record that others change, or that does not parse
CLAIM_S = 600.0  # for which a claim holds: much less than the hour after which an unused key is swept


@dataclass(frozen=True)
class BatchKeys:
    """A key stands for one batch at a time, of which gateways that claim it at once learn the same id. Whoever has the
    id may write the batch, so a key that was claimed by a process that is gone is as good as any. The offline-queue
    sweeps the records whose batches are gone."""

    records: Bucket[BatchKey]
    clock: Clock

    async def batch_of(self, place: str) -> str | None:
        """The id that the key stands for; None where it is free. Raises BusError."""
        found = await self._find(place)
        return None if found is None else found[0].batch_id

    async def claim(self, place: str) -> str:
        """The id that the key stands for from here on, a new one where it was free. An old claim is made anew, so that
        no sweep frees the key while its batch is written. Raises BusError."""
        for _ in range(MOST_TRIES):
            now_s = self.clock.unix_s()
            with contextlib.suppress(ConflictError):
                found = await self._find(place)
                if found is None:
                    made = BatchKey(new_id("batch_", now_s), int(now_s))
                    await self.records.create(place, made)
                    return made.batch_id
                key, revision = found
                if now_s - key.created_at > CLAIM_S:
                    await self.records.update(place, replace(key, created_at=int(now_s)), revision)
                return key.batch_id
        raise BusError(f"the record of an Idempotency-Key cannot be read: {place}")

    async def free(self, place: str, batch_id: str) -> None:
        """Where the key still stands for this batch. Raises BusError."""
        with contextlib.suppress(NotFoundOnBusError, ConflictError):
            entry = await self.records.get(place)
            if entry.value is not None and entry.value.batch_id == batch_id:
                await self.records.delete(place, entry.revision)

    async def _find(self, place: str) -> tuple[BatchKey, int] | None:
        """With the revision."""
        with contextlib.suppress(NotFoundOnBusError):
            entry = await self.records.get(place)
            return None if entry.value is None else (entry.value, entry.revision)
        return None


def place_of(owner: str, key: str) -> str:
    """Where a key of this owner has its record."""
    return _digest(f"{owner} {key}")


def earlier_ids(owner: str, key: str) -> Iterator[str]:
    """Those that the version before gave the batches of a key, one after another as they were withdrawn."""
    return (f"batch_{_digest(f'{attempt} {owner} {key}')}" for attempt in itertools.count())


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
