"""Of which model a batch is: that of the first line of its input."""

from collections.abc import AsyncIterator

import msgspec

from shared.errors import NotFoundOnBusError

MAX_LINE_BYTES = 8 * 1024 * 1024  # of a longer line nothing is read
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _Body(msgspec.Struct):
    model: str | None = None


class _Line(msgspec.Struct):
    body: _Body = msgspec.field(default_factory=_Body)


_decoder = msgspec.json.Decoder(_Line)


async def model_of_first_line(chunks: AsyncIterator[bytes]) -> str | None:
    """The name that its request asks for; None where it cannot be read: whoever reads the whole file says what is
    wrong."""
    try:
        return _decoder.decode(await _first_line(chunks)).body.model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, NotFoundOnBusError):
        return None


async def _first_line(chunks: AsyncIterator[bytes]) -> bytes:
    """That is not empty."""
    read = b""
    async for chunk in chunks:
        read = (read + chunk).lstrip() if read else chunk.removeprefix(BYTE_ORDER_MARK).lstrip()
        line, newline, _ = read.partition(b"\n")
        if newline or len(read) > MAX_LINE_BYTES:
            return line[: MAX_LINE_BYTES + 1]
    return read
