"""The lines of a file that comes in pieces."""

from collections.abc import AsyncIterable, AsyncIterator

MAX_LINE_BYTES = 8 * 1024 * 1024  # of a batch's input
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # that its first line may begin with


async def split_lines(chunks: AsyncIterable[bytes], max_bytes: int | None = None) -> AsyncIterator[tuple[int, bytes]]:
    """Each line with its number, from 1, without its newline. A line longer than ``max_bytes`` is cut to one byte
    more than that, so that memory is bounded whatever the file holds."""
    number, parts = 0, bytearray()
    limit = None if max_bytes is None else max_bytes + 1
    async for chunk in chunks:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            number += 1
            parts += chunk[start:end]
            yield number, bytes(parts[:limit])
            parts.clear()
            start = end + 1
        parts += chunk[start:]
        if limit is not None:
            del parts[limit:]
    if parts:
        yield number + 1, bytes(parts)
