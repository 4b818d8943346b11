"""What the owner of an API key may have at a time: bytes in files, open batches, and tokens that these still need."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NoReturn
from weakref import WeakValueDictionary

from services.gateway.http.errors import Refusal
from services.gateway.store import BatchStore, FileStore
from shared.protocol.access.api_keys import ApiKeyRecord
from shared.protocol.access.key_usage import INSUFFICIENT_QUOTA
from shared.protocol.offline.batches import OPEN_STATUSES, BatchRecord, FileRecord

RETRY_S = 60.0
FREE_BYTES = "delete files"
END_BATCHES = "wait until some have ended, or cancel one"
USE_TOKENS = "wait until more of them are done, or cancel a batch"


class Quotas:
    """Those of each key, over all that its owner has: an organization's keys count together, whichever of them has
    made it. Counted is what the bus has, and what is on its way there through this gateway."""

    def __init__(self, files: FileStore, batches: BatchStore) -> None:
        self._files = files
        self._batches = batches
        self._coming_bytes = _Coming()
        self._coming_batches = _Coming()

    async def check_bytes_left(self, key: ApiKeyRecord | None) -> None:
        """Before anything is read of a file. Raises Refusal (429) and BusError."""
        if key is None or (bound := key.max_stored_bytes) is None:
            return
        num_bytes = sum((await self._stored_bytes(key)).values())
        if num_bytes >= bound:
            _refuse(key, "stored_bytes", f"{num_bytes:,} bytes in files", f"{bound:,}", FREE_BYTES)

    @contextlib.asynccontextmanager
    async def storing(self, key: ApiKeyRecord | None, file: FileRecord) -> AsyncIterator[None]:
        """Around the storing of a file of this key's. Raises Refusal (429) and BusError."""
        if key is None or (bound := key.max_stored_bytes) is None:
            yield
            return

        def check(num_bytes: int) -> None:
            if num_bytes + file.bytes > bound:
                asked = f"{num_bytes:,} bytes in files, and this one has {file.bytes:,}"
                _refuse(key, "stored_bytes", asked, f"{bound:,}", FREE_BYTES)

        async with self._coming_bytes.let_in(key.owner, file.id, file.bytes, lambda: self._stored_bytes(key), check):
            yield

    @contextlib.asynccontextmanager
    async def opening(self, key: ApiKeyRecord | None, batch: BatchRecord) -> AsyncIterator[None]:
        """Around the writing of a new batch of this key's. Raises Refusal (429) and BusError."""
        bounds = () if key is None else (key.max_stored_bytes, key.max_open_batches, key.max_queued_tokens)
        if key is None or not any(bound is not None for bound in bounds):
            yield
            return
        await self.check_bytes_left(key)  # outputs count and are never refused: no new batch makes more of them

        async def stored() -> dict[str, int]:
            records = await self._open_batches(key)
            _check_tokens(key, records)
            return dict.fromkeys((record.id for record in records), 1)

        def check(num_batches: int) -> None:
            if key.max_open_batches is not None and num_batches >= key.max_open_batches:
                asked = f"{num_batches:,} batches that have not ended"
                _refuse(key, "open_batches", asked, f"{key.max_open_batches:,}", END_BATCHES)

        async with self._coming_batches.let_in(key.owner, batch.id, 1, stored, check):
            yield

    async def _stored_bytes(self, key: ApiKeyRecord) -> dict[str, int]:
        """By file."""
        return {record.id: record.bytes for record in await self._files.all() if record.owner == key.owner}

    async def _open_batches(self, key: ApiKeyRecord) -> list[BatchRecord]:
        records = await self._batches.all()
        return [record for record in records if record.owner == key.owner and record.status in OPEN_STATUSES]


class _Coming:
    """What is on its way to the store, by owner and id. Of each owner one thing is looked at at a time."""

    def __init__(self) -> None:
        self._amounts: dict[str, dict[str, int]] = {}
        self._num_comings: Counter[tuple[str, str]] = Counter()  # of the same thing, where its client has repeated it
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def let_in(
        self,
        owner: str,
        id: str,
        amount: int,
        stored: Callable[[], Awaitable[dict[str, int]]],
        check: Callable[[int], None],
    ) -> AsyncIterator[None]:
        """``stored``: what is there by now, by id; ``check`` is told the sum of the others with what is coming, and
        raises where there is no room. Counts until it is left."""
        turn = self._turns.setdefault(owner, asyncio.Lock())
        async with turn:
            coming = dict(self._amounts.get(owner, {}))  # first: what arrives meanwhile is in one of the two
            check(sum(each for name, each in (coming | await stored()).items() if name != id))
            self._amounts.setdefault(owner, {})[id] = amount
            self._num_comings[owner, id] += 1
        try:
            yield
        finally:
            self._num_comings[owner, id] -= 1
            if not self._num_comings[owner, id]:
                del self._num_comings[owner, id], self._amounts[owner][id]
            if not self._amounts[owner]:
                del self._amounts[owner]


def _check_tokens(key: ApiKeyRecord, records: list[BatchRecord]) -> None:
    """The offline-queue counts those of a new batch, and fails it where they are too many."""
    num_tokens = sum(record.queued_tokens for record in records)
    if key.max_queued_tokens is not None and num_tokens >= key.max_queued_tokens:
        asked = f"{num_tokens:,} tokens queued in batches"
        _refuse(key, "queued_tokens", asked, f"{key.max_queued_tokens:,}", USE_TOKENS)


def _refuse(key: ApiKeyRecord, reason: str, used: str, bound: str, remedy: str) -> NoReturn:
    """Its client is told not to repeat it: nothing changes within seconds."""
    message = f"You exceeded your current quota: {key.named_owner} has {used}, of at most {bound}; {remedy}."
    headers = {"x-should-retry": "false"}
    raise Refusal(reason, message, RETRY_S, 429, INSUFFICIENT_QUOTA, headers=headers)
