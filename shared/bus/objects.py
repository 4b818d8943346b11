"""File contents of any size."""

import contextlib
import io
from collections.abc import AsyncIterator
from typing import BinaryIO

import msgspec
from nats.js.api import ObjectInfo
from nats.js.object_store import ObjectStore

from shared.bus.failures import NO_OBJECT, failing_as
from shared.bus.growing_object import CHUNKS, DESCRIPTIONS, FETCH_CHUNKS, STREAM, GrowingObject
from shared.bus.streams import Streams
from shared.errors import BusError, NotFoundOnBusError
from shared.protocol.codec import decode_record


class Objects:
    """The object bucket: file contents of any size, in chunks."""

    def __init__(self, streams: Streams, store: ObjectStore) -> None:
        self._streams = streams
        self._store = store

    async def put(self, name: str, data: BinaryIO | bytes) -> int:
        """Store the bytes under the name, replacing what was there; returns their number."""
        source = io.BytesIO(data) if isinstance(data, bytes) else data
        with failing_as(f"put object {name}"):
            return (await self._store.put(name, source)).size or 0

    def growing(self, name: str) -> GrowingObject:
        """To be written piece by piece, by one writer; see there."""
        return GrowingObject(self._streams, name)

    async def chunks(self, name: str, num_bytes: int | None = None) -> AsyncIterator[bytes]:
        """The object's bytes, a chunk at a time; ``num_bytes``: of an object that may have grown since it had that
        size. Raises NotFoundOnBusError, also where chunks are lost, and BusError where somebody replaces the object
        meanwhile."""
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

    async def all(self) -> dict[str, float]:
        """Every object's name, in the order of their storing, and the unix time at which its last chunk was there."""
        read = self._streams.read_raw(STREAM, f"{DESCRIPTIONS}>")
        found = [(decode_record(raw.data, _Description), raw.stored_s) async for raw in read]
        return {description.name: stored_s for description, stored_s in found if not description.deleted}

    async def sweep(self, before_s: float) -> int:
        """Remove what no object needs: chunks whose putting was cut short, and the descriptions of deleted objects,
        where nothing was added to them since ``before_s`` (unix time). Returns how many of them there were."""
        chunks = [
            raw.subject
            async for raw in self._streams.read_raw(STREAM, f"{CHUNKS}>", newest_only=True)
            if raw.stored_s < before_s
        ]
        used: set[str] = set()  # membership only, never iterated
        unused: list[str] = []
        async for raw in self._streams.read_raw(STREAM, f"{DESCRIPTIONS}>"):  # after the chunks: those come first
            description = decode_record(raw.data, _Description)
            if not description.deleted:
                used.add(CHUNKS + description.nuid)
            elif raw.stored_s < before_s:
                unused.append(raw.subject)
        unused += [subject for subject in chunks if subject not in used]
        for subject in unused:
            await self._streams.purge(STREAM, subject)
        return len(unused)

    async def _describe(self, name: str) -> ObjectInfo:
        with failing_as(f"get object {name}"):
            try:
                return await self._store.get_info(name)
            except NO_OBJECT as error:
                raise NotFoundOnBusError(name) from error


class _Description(msgspec.Struct):
    """What we read of NATS's ObjectInfo."""

    name: str
    nuid: str = ""
    deleted: bool = False
