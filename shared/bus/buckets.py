"""Key-value buckets of records of one type."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import nats.js.errors
from nats.js.kv import KeyValue

from shared.bus.connection import failing_as
from shared.bus.streams import Raw, Streams
from shared.cancellation import check_cancelled
from shared.errors import BusError, ConflictError, NotFoundOnBusError
from shared.protocol.codec import decode_record, encode_record

logger = logging.getLogger(__name__)

T = TypeVar("T")

WRONG_LAST_SEQUENCE = 10071  # JetStream: compare-and-set lost, or the key exists
NEVER_WRITTEN = 0  # the revision of a key that has had no value, nor a deletion that is not forgotten
OPERATION_HEADER = "KV-Operation"  # what is not a put says so here


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One key's value; ``value`` is None where the key was deleted, or does not parse. ``revision`` is for
    ``Bucket.update``."""

    key: str
    value: T | None
    revision: int


class Bucket(Generic[T]):
    """A KV bucket whose values are records of one type."""

    def __init__(
        self, streams: Streams, kv: KeyValue, name: str, record_type: type[T], make: Callable[[], Awaitable[object]]
    ) -> None:
        """``make``: create it on the server where it is absent."""
        self._streams = streams
        self._make = make
        self._kv = kv
        self._type = record_type
        self._stream = f"KV_{name}"
        self._prefix = f"$KV.{name}."

    async def get(self, key: str) -> Entry[T]:
        """Raises NotFoundOnBusError, also where what is there does not parse (another version's)."""
        entry = await self.find(key)
        if entry is None or entry.value is None:
            raise NotFoundOnBusError(key)
        return entry

    async def find(self, key: str) -> Entry[T] | None:
        """None where it has no value; of one that does not parse the ``value`` is None."""
        try:
            return self._entry(await self._newest(key))
        except NotFoundOnBusError:
            return None

    async def has(self, key: str) -> bool:
        """Whether it has a value, also one that does not parse."""
        try:
            await self._newest(key)
        except NotFoundOnBusError:
            return False
        return True

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

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Deleting an absent key is no error. Raises ConflictError where it is not at the ``revision``, if given."""
        await self._write(key, self._kv.delete(key, last=revision))

    async def entries(self) -> list[Entry[T]]:
        """All present entries that parse, in the order of their revisions. A key that is written meanwhile is among
        them."""
        # each is decoded as it comes: all at once would hold up others for seconds
        reading = self._streams.read_raw(self._stream, f"{self._prefix}>")
        found = {raw.subject: self._entry(raw) async for raw in reading}
        found |= {raw.subject: self._entry(raw) async for raw in self._missed(found)}
        present = (entry for entry in found.values() if entry.value is not None)
        return sorted(present, key=lambda entry: entry.revision)

    async def keys(self) -> set[str]:
        """All that have a value, also one that does not parse; perhaps one that is deleted meanwhile."""
        gone = {raw.subject async for raw in self._deletions()}
        found = await self._streams.subjects(self._stream, f"{self._prefix}>")
        return {subject.removeprefix(self._prefix) for subject in found if subject not in gone}

    async def deletions(self, before_s: float) -> dict[str, int]:
        """The server keeps of each deleted key that it was deleted: those deletions that are older than ``before_s``
        (unix time), as keys and revisions, for ``forget``."""
        old = [raw async for raw in self._deletions() if raw.stored_s < before_s]
        return {raw.subject.removeprefix(self._prefix): raw.sequence for raw in old}

    async def forget(self, deletions: Mapping[str, int]) -> None:
        """Remove what is kept of these, which were found KEPT_S (``shared/bus/pulls.py``) ago or longer: by now whoever
        watches has heard of them, or reads all again."""
        for key, revision in deletions.items():
            await self._streams.purge(self._stream, self._prefix + key, revision)

    async def watch(self) -> AsyncIterator[Entry[T] | None]:
        """Every present entry, then one None, then every change as it comes. Never ends. Where the bus was away, all is
        read again, and what is another by then comes, as does what is gone: its deletion may be forgotten, and the
        store may have lost it. What changes while the entries are read may come twice. A value that does not parse
        (another version's) is as good as deleted."""
        told, is_first = _Told(), True
        while True:
            check_cancelled()
            generation = self._streams.reconnects
            try:
                async with contextlib.aclosing(self._news(told)) as news:
                    async for entry in news:
                        if entry is not None or is_first:
                            yield entry
                        is_first = is_first and entry is not None
            except BusError as error:  # only before the None
                logger.warning("watch failed, trying again", extra={"stream": self._stream, "why": str(error)})
                await self._streams.wait_reconnected(generation, timeout_s=1.0)

    async def follow(self, tell: Callable[[str, T | None], None]) -> None:
        """Call with each key and value that ``watch`` tells of. Never returns."""
        async for entry in self.watch():
            if entry is not None:
                tell(entry.key, entry.value)

    async def _news(self, told: _Told) -> AsyncGenerator[Entry[T] | None, None]:
        """What of all entries was not told yet, one None, then every change, until the reader is lost."""
        present: dict[str, None] = {}
        is_live = False
        reading = self._streams.follow_raw(self._stream, f"{self._prefix}>", goes_on=False)
        async with contextlib.aclosing(reading) as raws:
            async for raw in raws:
                if raw is not None:
                    if not is_live:
                        present[raw.subject] = None
                    if told.hear(raw) or is_live:
                        yield self._entry(raw)
                    continue
                async for missed in self._missed(present):
                    present[missed.subject] = None
                    if told.hear(missed):
                        yield self._entry(missed)
                for subject in told.forget_all_but(present):
                    yield Entry(subject.removeprefix(self._prefix), None, NEVER_WRITTEN)
                present, is_live = {}, True
                yield None

    async def _deletions(self) -> AsyncIterator[Raw]:
        async for raw in self._streams.read_raw(self._stream, f"{self._prefix}>", newest_only=True):
            if _is_gone(raw):
                yield raw

    async def _missed(self, seen: Collection[str]) -> AsyncIterator[Raw]:
        """What is present and not among the subjects ``seen`` by a reader that was told that it has caught up. It is
        told so too early where a message that it had not read was overwritten: the server takes the old one off its
        count of what is pending before it adds the new one."""
        for subject in await self._streams.subjects(self._stream, f"{self._prefix}>"):
            if subject not in seen:
                with contextlib.suppress(NotFoundOnBusError):
                    yield await self._newest(subject.removeprefix(self._prefix))

    async def _newest(self, key: str) -> Raw:
        """Raises NotFoundOnBusError."""

        async def read() -> KeyValue.Entry | None:
            try:
                return await self._kv.get(key)
            except nats.js.errors.KeyNotFoundError as error:
                if error.entry is None:
                    raise
                return None  # the newest is its deletion

        with failing_as(f"get {key}"):
            entry = await self._streams.newest(self._stream, self._prefix + key, read)
        if entry is None:
            raise NotFoundOnBusError(key)
        return Raw(entry.value or b"", self._prefix + key, entry.revision or 0, {}, 0.0)

    def _entry(self, raw: Raw) -> Entry[T]:
        key, value = raw.subject.removeprefix(self._prefix), None
        if not _is_gone(raw):
            try:
                value = decode_record(raw.data, self._type)
            except msgspec.DecodeError as error:
                why = {"stream": self._stream, "key": key, "why": str(error)}
                logger.warning("a record does not parse", extra=why)
        return Entry(key, value, raw.sequence)

    async def _write(self, key: str, writing: Awaitable[int]) -> int:
        with failing_as(f"write {key}"):
            try:
                return await writing
            except nats.js.errors.NoStreamResponseError:  # the server may have lost all that it stored
                await self._make()
                raise
            except nats.js.errors.APIError as error:
                is_late = isinstance(error, nats.js.errors.KeyWrongLastSequenceError)
                if is_late or error.err_code == WRONG_LAST_SEQUENCE:
                    raise ConflictError(key) from error
                raise


def _is_gone(raw: Raw) -> bool:
    return raw.headers.get(OPERATION_HEADER) in ("DEL", "PURGE")


class _Told:
    """What a watch has told of what is there. A store that has lost its newest messages gives their revisions again, so
    that a value is known by the time, too, at which it was stored."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[int, float]] = {}  # by subject
        self._newest = 0

    def hear(self, raw: Raw) -> bool:
        """Whether it is to be told; from here on it is."""
        before, is_newer = self._values.pop(raw.subject, None), raw.sequence > self._newest
        self._newest = max(self._newest, raw.sequence)
        if _is_gone(raw):
            return before is not None or is_newer
        self._values[raw.subject] = raw.sequence, raw.stored_s
        return self._values[raw.subject] != before

    def forget_all_but(self, present: Collection[str]) -> list[str]:
        """The others, which were told."""
        gone = [subject for subject in self._values if subject not in present]
        for subject in gone:
            del self._values[subject]
        return gone
