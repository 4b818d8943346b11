"""Key-value buckets of records of one type."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import nats.errors
import nats.js.errors
from nats.js.kv import KeyValue

from shared.bus.connection import Connection
from shared.bus.failures import FAILURES, WRONG_LAST_SEQUENCE
from shared.cancellation import check_cancelled
from shared.errors import BusError, ConflictError, NotFoundOnBusError
from shared.protocol.codec import decode_record, encode_record

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One key's value; ``value`` is None where the key was deleted. ``revision`` is for ``Bucket.update``."""

    key: str
    value: T | None
    revision: int


class Bucket(Generic[T]):
    """A KV bucket whose values are records of one type."""

    def __init__(self, connection: Connection, kv: KeyValue, record_type: type[T]) -> None:
        self._connection = connection
        self._kv = kv
        self._type = record_type

    async def get(self, key: str) -> Entry[T]:
        """Raises NotFoundOnBusError."""
        try:
            entry = await self._kv.get(key)
        except (nats.js.errors.KeyNotFoundError, nats.js.errors.KeyDeletedError) as error:
            raise NotFoundOnBusError(key) from error
        except FAILURES as error:
            raise BusError(f"get {key}: {error!r}") from error
        return Entry(key, decode_record(entry.value or b"", self._type), entry.revision or 0)

    async def create(self, key: str, value: T) -> int:
        """The new revision. Raises ConflictError where the key exists."""
        return await self._write(key, self._kv.create(key, encode_record(value)))

    async def put(self, key: str, value: T) -> int:
        """The new revision; whatever was there is replaced."""
        return await self._write(key, self._kv.put(key, encode_record(value)))

    async def update(self, key: str, value: T, revision: int) -> int:
        """The new revision. Raises ConflictError where another writer came first."""
        return await self._write(key, self._kv.update(key, encode_record(value), last=revision))

    async def edit(self, key: str, change: Callable[[T], T]) -> T:
        """Read, change, write, again until no other writer came between. Raises NotFoundOnBusError."""
        while True:
            entry = await self.get(key)
            assert entry.value is not None
            changed = change(entry.value)
            if changed == entry.value:
                return changed
            with contextlib.suppress(ConflictError):
                await self.update(key, changed, entry.revision)
                return changed

    async def delete(self, key: str) -> None:
        """Deleting an absent key is no error."""
        try:
            await self._kv.purge(key)
        except FAILURES as error:
            raise BusError(f"delete {key}: {error!r}") from error

    async def entries(self) -> list[Entry[T]]:
        """All present entries, in the order of their revisions."""
        found = []
        try:
            watcher = await self._kv.watchall(ignore_deletes=True)
            try:
                async for entry in watcher:
                    if entry is None:
                        break
                    found.append(Entry(entry.key, decode_record(entry.value or b"", self._type), entry.revision or 0))
            finally:
                await watcher.stop()
        except FAILURES as error:
            raise BusError(f"entries: {error!r}") from error
        return found

    async def watch(self) -> AsyncIterator[Entry[T] | None]:
        """Every present entry, then one None, then every change as it comes; after a reconnect all over again
        (with its None), since changes may have been missed."""
        while True:
            check_cancelled()
            generation = self._connection.reconnects
            try:
                watcher = await self._kv.watchall()
            except FAILURES as error:
                logger.warning("watch failed, trying again", extra={"error": repr(error)})
                await self._connection.wait_reconnected(generation, timeout_s=1.0)
                continue
            try:
                async for entry in self._updates(watcher, generation):
                    yield entry
            finally:
                with contextlib.suppress(*FAILURES):
                    await watcher.stop()

    async def _updates(self, watcher: KeyValue.KeyWatcher, generation: int) -> AsyncIterator[Entry[T] | None]:
        while self._connection.reconnects == generation:
            check_cancelled()
            try:
                entry = await watcher.updates(timeout=1.0)
            except (TimeoutError, nats.errors.TimeoutError):
                continue
            if entry is None:
                yield None
            elif entry.operation in ("DEL", "PURGE"):
                yield Entry(entry.key, None, entry.revision or 0)
            else:
                yield Entry(entry.key, decode_record(entry.value or b"", self._type), entry.revision or 0)

    async def _write(self, key: str, writing: Awaitable[int]) -> int:
        try:
            return await writing
        except nats.js.errors.KeyWrongLastSequenceError as error:
            raise ConflictError(key) from error
        except nats.js.errors.APIError as error:
            if error.err_code == WRONG_LAST_SEQUENCE:
                raise ConflictError(key) from error
            raise BusError(f"write {key}: {error!r}") from error
        except FAILURES as error:
            raise BusError(f"write {key}: {error!r}") from error
