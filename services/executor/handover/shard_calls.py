"""What an executor asks of a process that has a part of its KV, over a stream that the two have to themselves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from shared.protocol.codec import decode, encode, prepare
from shared.protocol.handover import KVAddress, Place

LENGTH = struct.Struct("<I")  # of the message that follows, in bytes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ShardStreams:
    """``KVShards``: the executor's ends, one to each process, which serves it as ``serve_in_thread`` does."""

    connections: list[socket.socket]  # always in the same order

    def close(self) -> None:
        """See ``KVShards.close``."""
        for connection in self.connections:
            connection.close()


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Make its link, that of the shards of this executor; first of all. The answer has its address."""

    place: Place


class Connect(msgspec.Struct, frozen=True, tag="connect"):
    """``KVLink.connect``, to the like shard of another executor."""

    address: KVAddress


class Read(msgspec.Struct, frozen=True, tag="read"):
    """``KVLink.read``."""

    place: Place
    pairs: list[tuple[int, int]]  # (block of the other, own block)


class Disconnect(msgspec.Struct, frozen=True, tag="disconnect"):
    """``KVLink.disconnect``."""

    place: Place


class Close(msgspec.Struct, frozen=True, tag="close"):
    """``KVLink.close``."""


class ShardCall(msgspec.Struct, frozen=True):
    """They are answered as they end, in any order."""

    number: int
    what: Begin | Connect | Read | Disconnect | Close


class ShardAnswer(msgspec.Struct, frozen=True):
    """To the call of this number, once all is done. ``error``: why it failed, in words."""

    number: int
    error: str = ""
    address: KVAddress | None = None


prepare(ShardCall)  # here, and not in the thread that serves
prepare(ShardAnswer)


async def receive(reader: asyncio.StreamReader, message_type: type[T]) -> T | None:
    """The next message; None where the other side is gone."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return decode(await reader.readexactly(length), message_type)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def send(writer: asyncio.StreamWriter, message: object) -> None:
    """Where the other side is gone, nothing: who reads hears of it."""
    body = encode(message)
    writer.write(LENGTH.pack(len(body)) + body)


async def end(writer: asyncio.StreamWriter) -> None:
    """What the other side has not taken yet is dropped; whether it went away by itself is no error of anybody."""
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
