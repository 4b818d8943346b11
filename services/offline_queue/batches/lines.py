"""What a batch keeps of each line after its request was deleted: enough to write its place in the result files.

It is one object beside the files, JSON lines in the order of the input; the input file may be deleted meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from array import array
from collections.abc import AsyncIterator, Callable
from typing import IO

import msgspec

from shared.bus import Objects
from shared.lines import split_lines
from shared.openai.reasoning import Reasoning
from shared.openai.responses.answers import ModelResponse
from shared.openai.tools.calls import ToolUse
from shared.protocol.sampling import SamplingParams

IN_MEMORY_BYTES = 4 * 1024 * 1024  # beyond this, temporary files go to the disk
GROUP_LINES = 256
MOST_DIGITS = 9  # of a line's number

_encoder = msgspec.json.Encoder()


class BatchLine(msgspec.Struct, frozen=True, array_like=True):
    """One request of a batch."""

    line: int  # from 1, as in the input file
    custom_id: str
    num_prompt_tokens: int = 0
    sampling: SamplingParams | None = None  # None where the request failed while it was read
    tools: ToolUse | None = None  # whose calls are to be found in its output
    num_sampling_bytes: int = 0  # of what the request is sampled by, beyond the usual: a grammar, biases, stops
    response: ModelResponse | None = None  # of /v1/responses, the answer without any output yet
    reasoning: Reasoning | None = None  # that its output may have before its content

    @property
    def most_output_tokens(self) -> int:
        """Of all its choices together."""
        return 0 if self.sampling is None else self.sampling.n * self.sampling.max_tokens

    @property
    def most_tokens(self) -> int:
        """Prompt and the longest answers."""
        return self.num_prompt_tokens + self.most_output_tokens


_decoder = msgspec.json.Decoder(BatchLine)


def lines_object(batch_id: str) -> str:
    """The name of the object that holds the batch's lines; no file record has it, so that clients do not see it."""
    return f"{batch_id}.lines"


def line_of(id: str, separator: str = ".") -> int:
    """The line at the end of a request's id, or of another one that is made of it; 0, which no line has, where there
    is no number."""
    number = id.rpartition(separator)[2]
    return int(number) if number.isdecimal() and len(number) <= MOST_DIGITS else 0


def encode_lines(lines: list[BatchLine]) -> bytes:
    """A part of the object."""
    return _encoder.encode_lines(lines)


async def read_lines(objects: Objects, batch_id: str) -> AsyncIterator[BatchLine]:
    """In the order of the input. Raises NotFoundOnBusError."""
    async for _, data in split_lines(objects.chunks(lines_object(batch_id))):
        yield _decoder.decode(data)


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
    async def read(cls, objects: Objects, batch_id: str, tell: Callable[[BatchLine], None]) -> LineSpool:
        """All lines of the batch; ``tell`` is told each. Raises NotFoundOnBusError and BusError."""
        spool, group = cls(), []
        async for line in read_lines(objects, batch_id):
            tell(line)
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
        return _decoder.decode(self._file.read(self._places[2 * number + 1]))

    @property
    def end(self) -> int:
        """Numbers are below this."""
        return len(self._places) // 2

    def close(self) -> None:
        """What a full disk does not take of it any more is not needed either."""
        with contextlib.suppress(OSError):
            self._file.close()
