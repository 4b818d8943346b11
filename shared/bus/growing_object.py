"""An object of lines that is written piece by piece."""

import base64
import hashlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

from nats.js.api import Header, ObjectInfo, ObjectMetaOptions

from shared.bus.streams import Raw, Streams
from shared.errors import BusError
from shared.protocol import subjects
from shared.protocol.codec import encode_record

PIECE_BYTES = 128 * 1024  # as nats-py's own chunks
FETCH_CHUNKS = 16  # 2 MiB in memory at once
STREAM = f"OBJ_{subjects.OBJECTS_BUCKET}"
CHUNKS = f"$O.{subjects.OBJECTS_BUCKET}.C."
DESCRIPTIONS = f"$O.{subjects.OBJECTS_BUCKET}.M."


class GrowingObject:
    """One writer appends; whoever reads sees the pieces that were whole when it asked. What a kill left is read with
    ``recover``, which comes before the first ``append``. Its chunks lie under its name, so that those are found that
    were stored when the description was not yet."""

    def __init__(self, streams: Streams, name: str) -> None:
        """``name`` is a token of a subject."""
        self.name = name
        self.size = 0
        self._streams = streams
        self._num_chunks = 0
        self._hash = hashlib.sha256()
        self._last_sequence = 0

    async def recover(self) -> AsyncIterator[bytes]:
        """The pieces that are there, in order; the beginning of a line that was cut short is removed. Raises
        BusError."""
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
        subject = DESCRIPTIONS + base64.urlsafe_b64encode(self.name.encode()).decode()
        await self._streams.store_raw(subject, encode_record(info.as_dict()), {Header.ROLLUP.value: "sub"})

    def _count(self, piece: bytes, sequence: int) -> None:
        self.size += len(piece)
        self._num_chunks += 1
        self._hash.update(piece)
        self._last_sequence = sequence


def _pieces(lines: bytes) -> Iterator[bytes]:
    """Of whole lines where those are short enough."""
    start = 0
    while start < len(lines):
        end = start + PIECE_BYTES
        if end < len(lines):
            end = lines.rfind(b"\n", start, end) + 1 or end
        yield lines[start:end]
        start = end
