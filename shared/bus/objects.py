"""File contents of any size, put at once or piece by piece."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import BinaryIO

import msgspec
import nats.js.errors
from nats.js.api import Header, ObjectInfo, ObjectMetaOptions
from nats.js.object_store import ObjectStore

from shared.bus.connection import failing_as
from shared.bus.streams import Raw, Streams
from shared.errors import BusError, NotFoundOnBusError
from shared.protocol import subjects
from shared.protocol.codec import decode_record, encode_record

logger = logging.getLogger(__name__)

NO_OBJECT = (nats.js.errors.ObjectNotFoundError, nats.js.errors.ObjectDeletedError, nats.js.errors.NotFoundError)
PIECE_BYTES = 128 * 1024  # as nats-py's own chunks
FETCH_CHUNKS = 16  # 2 MiB in memory at once
STREAM = f"OBJ_{subjects.OBJECTS_BUCKET}"
CHUNKS = f"$O.{subjects.OBJECTS_BUCKET}.C."
DESCRIPTIONS = f"$O.{subjects.OBJECTS_BUCKET}.M."


class Objects:
    """The object bucket: file contents of any size, in chunks."""

    def __init__(self, streams: Streams, store: ObjectStore) -> None:
        self._streams = streams
        self._store = store

    async def put(self, name: str, data: BinaryIO | bytes) -> int:
        """Store the bytes under the name, replacing what was there; returns their number."""
        with failing_as(f"put object {name}"):
            return (await self._store.put(name, data)).size or 0

    def growing(self, name: str) -> GrowingObject:
        """To be written piece by piece, by one writer; see there."""
        return GrowingObject(self._streams, name)

    async def chunks(self, name: str, num_bytes: int | None = None) -> AsyncIterator[bytes]:
        """The object's bytes, a chunk at a time; ``num_bytes``: of one that may have grown since, only so many. Raises
        NotFoundOnBusError, also where chunks are lost, and BusError where somebody replaces the object meanwhile."""
        info = await self._describe(name)
        size, seen = info.size or 0, 0
        size = size if num_bytes is None else min(size, num_bytes)
        async with contextlib.aclosing(self._streams.read_raw(STREAM, CHUNKS + info.nuid, FETCH_CHUNKS)) as chunks:
            while seen < size and (chunk := await anext(chunks, None)) is not None:
                seen += len(chunk.data)
                yield chunk.data
        if seen != size:
            is_replaced = await self._describe(name) != info
            raise (BusError if is_replaced else NotFoundOnBusError)(f"object {name} has {seen} of {size} bytes")

    async def delete(self, name: str) -> None:
        """Deleting an absent object is no error."""
        with failing_as(f"delete object {name}"), contextlib.suppress(*NO_OBJECT):
            await self._store.delete(name)

    async def empty(self, name: str) -> None:
        """Remove its contents alone, for which a bus without room needs none: what deletes it is stored. An absent one
        is no error."""
        with contextlib.suppress(NotFoundOnBusError):
            await self._streams.purge(STREAM, CHUNKS + (await self._describe(name)).nuid)

    async def all(self) -> dict[str, float]:
        """Every object's name, in the order of their storing, and the unix time at which its last chunk was there."""
        found = [(_described(raw), raw.stored_s) for raw in await self._descriptions()]
        return {description.name: stored_s for description, stored_s in found if not description.deleted}

    async def unneeded(self) -> dict[str, float]:
        """Subjects of what no object needs, and the unix time at which something was added there last: chunks whose
        putting goes on or was cut short, and the descriptions of deleted objects."""
        chunks = {
            raw.subject: raw.stored_s async for raw in self._streams.read_raw(STREAM, f"{CHUNKS}>", newest_only=True)
        }
        deleted: dict[str, float] = {}
        for raw in await self._descriptions():  # after the chunks: those come first
            description = _described(raw)
            if description.deleted:
                deleted[raw.subject] = raw.stored_s
            else:
                chunks.pop(CHUNKS + description.nuid, None)
        return deleted | chunks

    async def remove_unneeded(self, unneeded: Iterable[str]) -> None:
        for subject in unneeded:
            await self._streams.purge(STREAM, subject)

    async def _descriptions(self) -> list[Raw]:
        """The newest of each object, in the order of their storing. Earlier ones were removed when it was stored, but a
        server that lost its power may have them again."""
        newest: dict[str, Raw] = {}
        async for raw in self._streams.read_raw(STREAM, f"{DESCRIPTIONS}>"):
            newest.pop(raw.subject, None)
            newest[raw.subject] = raw
        return [*newest.values()]

    async def _describe(self, name: str) -> ObjectInfo:
        with failing_as(f"get object {name}"):
            info = await self._streams.newest(STREAM, _description_of(name), partial(self._store.get_info, name, True))
        if info is None or info.deleted:
            raise NotFoundOnBusError(name)
        return info


class GrowingObject:
    """One writer appends; whoever reads sees the pieces that were whole when it asked. ``recover``, before the first
    ``append``, reads what a kill left. Its chunks lie under its name, to be found before they are described."""

    def __init__(self, streams: Streams, name: str) -> None:
        """``name`` is a token of a subject."""
        self.name = name
        self.size = 0
        self._streams = streams
        self._num_chunks = 0
        self._hash = hashlib.sha256()
        self._last_sequence = 0

    async def recover(self) -> AsyncIterator[bytes]:
        """The pieces that are there, in order; a last line that was cut short is removed. Raises BusError."""
        pending: list[Raw] = []
        async for chunk in self._streams.read_raw(STREAM, CHUNKS + self.name, FETCH_CHUNKS):
            pending.append(chunk)
            if chunk.data.endswith(b"\n"):
                for whole in pending:
                    self._count(whole.data, whole.sequence)
                    yield whole.data
                pending = []
        for cut in pending:
            await self._streams.delete_stored(STREAM, cut.sequence)

    async def append(self, lines: bytes) -> None:
        """Whole lines. Raises BusError where it is not known what was stored; then only a new object's ``recover``
        tells. Another writer's piece in between raises it as well."""
        for piece in _pieces(lines):
            headers = {Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(self._last_sequence)}
            self._count(piece, await self._streams.store_raw(CHUNKS + self.name, piece, headers))
        await self.describe()

    async def check(self) -> None:
        """Raises BusError where what was appended last is not the newest any more: somebody deleted it."""
        newest = [raw.sequence async for raw in self._streams.read_raw(STREAM, CHUNKS + self.name, newest_only=True)]
        if max(newest, default=0) != self._last_sequence:
            raise BusError(f"object {self.name} was changed by somebody else")

    async def describe(self) -> None:
        """Make all that is there readable. Raises BusError."""
        info = ObjectInfo(
            name=self.name,
            bucket=subjects.OBJECTS_BUCKET,
            nuid=self.name,
            size=self.size,
            chunks=self._num_chunks,
            mtime=datetime.now(UTC).isoformat(),
            digest=f"SHA-256={base64.urlsafe_b64encode(self._hash.digest()).decode()}",
            options=ObjectMetaOptions(max_chunk_size=PIECE_BYTES),
        )
        description = encode_record(info.as_dict())
        await self._streams.store_raw(_description_of(self.name), description, {Header.ROLLUP.value: "sub"})

    def _count(self, piece: bytes, sequence: int) -> None:
        self.size += len(piece)
        self._num_chunks += 1
        self._hash.update(piece)
        self._last_sequence = sequence


class _Description(msgspec.Struct):
    """What we read of NATS's ObjectInfo."""

    name: str
    nuid: str = ""
    deleted: bool = False


def _description_of(name: str) -> str:
    """Its subject."""
    return DESCRIPTIONS + base64.urlsafe_b64encode(name.encode()).decode()


def _described(raw: Raw) -> _Description:
    """One that does not parse leads to nothing: it is as good as deleted."""
    try:
        return decode_record(raw.data, _Description)
    except msgspec.DecodeError as error:
        logger.warning("an object's description does not parse", extra={"subject": raw.subject, "why": str(error)})
        return _Description("", deleted=True)


def _pieces(lines: bytes) -> Iterator[bytes]:
    """Of whole lines where those are short enough."""
    start = 0
    while start < len(lines):
        end = start + PIECE_BYTES
        if end < len(lines):
            end = lines.rfind(b"\n", start, end) + 1 or end
        yield lines[start:end]
        start = end
