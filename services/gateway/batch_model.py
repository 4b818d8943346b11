"""Of which model a batch is: that of the first line of its input."""

from collections.abc import AsyncIterator

import msgspec

from shared.errors import NotFoundOnBusError
from shared.lines import BYTE_ORDER_MARK, MAX_LINE_BYTES, split_lines


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
    async for number, data in split_lines(chunks, MAX_LINE_BYTES):
        line = data.removeprefix(BYTE_ORDER_MARK) if number == 1 else data
        if line.strip():
            return line
    return b""
