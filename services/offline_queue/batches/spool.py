"""The lines of one batch in a temporary file, to be had by number."""

from __future__ import annotations

import asyncio
import tempfile
from array import array
from typing import IO

from services.offline_queue.batches.lines import BatchLine, decode_line, encode_lines, read_lines
from shared.bus import Objects

IN_MEMORY_BYTES = 4 * 1024 * 1024  # beyond this, temporary files go to the disk
GROUP_LINES = 256


def temporary_file() -> IO[bytes]:
    """In memory while it is small; gone once closed."""
    return tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)


class LineSpool:
    """Lines come in their order and are asked for in the order of their results. Memory: 16 bytes per line."""

    def __init__(self) -> None:
        self._file = temporary_file()
        self._places: array[int] = array("Q")  # offset and size, by line; size 0 where there is none
        self._size = 0

    @classmethod
    async def read(cls, objects: Objects, batch_id: str) -> LineSpool:
        """All lines of the batch. Raises NotFoundOnBusError and BusError."""
        spool, group = cls(), []
        async for line in read_lines(objects, batch_id):
            group.append(line)
            if len(group) == GROUP_LINES:
                await asyncio.to_thread(spool.add, group)
                group = []
        await asyncio.to_thread(spool.add, group)
        return spool

    def add(self, lines: list[BatchLine]) -> None:
        for line in lines:
            data = encode_lines([line])
            self._file.write(data)
            self._places.extend([0] * (2 * line.line + 2 - len(self._places)))
            self._places[2 * line.line], self._places[2 * line.line + 1] = self._size, len(data)
            self._size += len(data)

    def get(self, number: int) -> BatchLine | None:
        """None where the input has no request there."""
        if 2 * number + 1 >= len(self._places) or not self._places[2 * number + 1]:
            return None
        self._file.seek(self._places[2 * number])
        return decode_line(self._file.read(self._places[2 * number + 1]))

    @property
    def end(self) -> int:
        """Numbers are below this."""
        return len(self._places) // 2

    def close(self) -> None:
        self._file.close()
