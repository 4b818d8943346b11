"""File contents of any size."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from typing import BinaryIO

from nats.js.object_store import ObjectStore

from shared.bus.failures import FAILURES, NO_OBJECT
from shared.bus.streams import Streams
from shared.errors import BusError, NotFoundOnBusError
from shared.protocol import subjects

FETCH_CHUNKS = 16  # 2 MiB in memory at once


class Objects:
    """The object bucket: file contents of any size, in chunks."""

    def __init__(self, streams: Streams, store: ObjectStore) -> None:
        self._streams = streams
        self._store = store

    async def put(self, name: str, data: BinaryIO | bytes) -> int:
        """Store the bytes under the name, replacing what was there; returns their number."""
        source = io.BytesIO(data) if isinstance(data, bytes) else data
        try:
            info = await self._store.put(name, source)
        except FAILURES as error:
            raise BusError(f"put object {name}: {error!r}") from error
        return info.size or 0

    async def get_into(self, name: str, sink: BinaryIO) -> int:
        """Write the object into an open binary file; returns its size. Raises NotFoundOnBusError."""
        total = 0
        async for chunk in self.chunks(name):
            await asyncio.to_thread(sink.write, chunk)
            total += len(chunk)
        return total

    async def chunks(self, name: str) -> AsyncIterator[bytes]:
        """The object's bytes, a chunk at a time. Raises NotFoundOnBusError, and BusError where chunks are missing."""
        try:
            info = await self._store.get_info(name)
        except NO_OBJECT as error:
            raise NotFoundOnBusError(name) from error
        except FAILURES as error:
            raise BusError(f"get object {name}: {error!r}") from error
        size, seen = info.size or 0, 0
        if size == 0:
            return
        stream = f"OBJ_{subjects.OBJECTS_BUCKET}"
        subject = f"$O.{subjects.OBJECTS_BUCKET}.C.{info.nuid}"
        async for sequence_data in self._streams.read_raw(stream, subject, FETCH_CHUNKS):
            seen += len(sequence_data.data)
            yield sequence_data.data
        if seen != size:
            raise BusError(f"object {name} has {seen} of {size} bytes")

    async def delete(self, name: str) -> None:
        """Deleting an absent object is no error."""
        try:
            await self._store.delete(name)
        except NO_OBJECT:
            return
        except FAILURES as error:
            raise BusError(f"delete object {name}: {error!r}") from error
