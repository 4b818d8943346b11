"""Server-sent events of the OpenAI API, from bytes as they arrive."""

from collections.abc import Iterator

import msgspec

DATA = b"data:"
DONE = b"[DONE]"
NULL = msgspec.Raw(b"null")


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one answer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Delta(msgspec.Struct, frozen=True):
    """A chat chunk's news; a model's thoughts are in ``reasoning``, or with some servers in ``reasoning_content``."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """One choice of a chunk: ``text`` in completions, ``delta`` in chat completions."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def tells_token(self) -> bool:
        """With its text, or with none where that has to wait for the next token's. A stream's first chunk of a chat,
        which has a role, and the last of a choice tell none of their own."""
        delta = self.delta or Delta()
        if self.text or delta.content or delta.reasoning or delta.reasoning_content:
            return True
        waits = "" in (self.text, delta.content, delta.reasoning)
        return self.finish_reason is None and delta.role is None and waits


class Chunk(msgspec.Struct, frozen=True):
    """One event. ``error`` is that of a server which reports a failure inside the stream, in JSON; else ``null``."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = NULL


_chunk_decoder = msgspec.json.Decoder(Chunk)


class EventParser:
    """Splits a byte stream into chunks; keeps what is not yet a whole line. ``done`` is set by ``[DONE]``."""

    def __init__(self) -> None:
        self._rest = b""
        self.done = False

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """The chunks that end within ``data``. Raises msgspec.DecodeError for an event that is not a chunk."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(DATA):
                continue
            payload = line[len(DATA) :].strip()
            if payload == DONE:
                self.done = True
            else:
                yield _chunk_decoder.decode(payload)
