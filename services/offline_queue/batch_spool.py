"""The results of one batch as they are in the stream, in a temporary file, to be had by line."""

from __future__ import annotations

import asyncio
import tempfile
from array import array
from types import TracebackType
from typing import IO

from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.codec import decode, encode
from shared.protocol.messages import OfflineResult

IN_MEMORY_BYTES = 4 * 1024 * 1024  # beyond this, temporary files go to the disk
GROUP_RESULTS = 256


def temporary_file() -> IO[bytes]:
    """In memory while it is small; gone once closed."""
    return tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)


class ResultSpool:
    """Results come in the order of their ends and leave in the order of their lines. Memory: 16 bytes per line."""

    def __init__(self) -> None:
        self._file = temporary_file()
        self._places: array[int] = array("Q")  # offset and size, by line; size 0 where there is none
        self._size = 0

    @classmethod
    async def read(cls, bus: Bus, batch_id: str) -> ResultSpool:
        """All results of the batch that are stored by now. Raises BusError."""
        spool, group = cls(), []
        async for stored in bus.read(subjects.RESULTS_STREAM, subjects.batch_results(batch_id), OfflineResult):
            group.append(stored.message)
            if len(group) == GROUP_RESULTS:
                await asyncio.to_thread(spool.add, group)
                group = []
        await asyncio.to_thread(spool.add, group)
        return spool

    def add(self, results: list[OfflineResult]) -> None:
        """The first result of a line stays."""
        self._file.seek(self._size)
        for result in results:
            line = int(result.request_id.rpartition(".")[2])
            if self.get_size(line):
                continue
            data = encode(result)
            self._file.write(data)
            self._places.extend([0] * (2 * line + 2 - len(self._places)))
            self._places[2 * line], self._places[2 * line + 1] = self._size, len(data)
            self._size += len(data)

    def get(self, line: int) -> OfflineResult | None:
        size = self.get_size(line)
        if not size:
            return None
        self._file.seek(self._places[2 * line])
        return decode(self._file.read(size), OfflineResult)

    def get_size(self, line: int) -> int:
        """Bytes of the line's result; 0 where there is none."""
        return self._places[2 * line + 1] if 2 * line + 1 < len(self._places) else 0

    def __enter__(self) -> ResultSpool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()
