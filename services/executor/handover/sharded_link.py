"""The link of an executor whose KV is in several processes: each reads its part of every block out of its like."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Sequence

import msgspec

from services.executor.handover.link import BlockPairs
from services.executor.handover.shard_calls import (
    Begin,
    Close,
    Connect,
    Disconnect,
    Read,
    ShardAnswer,
    ShardCall,
    ShardStreams,
    end,
    receive,
    send,
)
from shared.errors import EngineLostError, LinkError
from shared.protocol.codec import decode, encode
from shared.protocol.handover import KVAddress, Place

logger = logging.getLogger(__name__)

CLOSE_S = 5.0  # a process that does not answer for so long writes nothing once it has been ended

What = Begin | Connect | Read | Disconnect | Close


class ShardedLink:
    """See ``KVLink``. What one of the processes cannot do has failed for all, once each of them is done with it."""

    def __init__(self, shards: list[_Shard], addresses: list[KVAddress]) -> None:
        self._shards = shards
        self._peers: dict[Place, None] = {}
        self.kind = addresses[0].link
        layouts = itertools.groupby(address.layout for address in addresses)
        words = ", ".join(f"{len(list(equal))} with {layout}" for layout, equal in layouts)
        layout = f"in {len(addresses)} processes, {words}"
        self._address = KVAddress(addresses[0].place, self.kind, layout, encode(addresses))

    @classmethod
    async def begin(cls, place: Place, streams: ShardStreams) -> ShardedLink:
        """Each process makes its own link. Raises LinkError where one cannot."""
        made = [await _Shard.of(number, connection) for number, connection in enumerate(streams.connections)]
        try:
            answers = await _all(made, [Begin(place)] * len(made))
        except LinkError:
            for shard in made:
                await shard.close()
            raise
        return cls(made, [answer.address for answer in answers if answer.address is not None])

    @property
    def address(self) -> KVAddress:
        """See ``KVLink.address``."""
        return self._address

    def check(self) -> None:
        """See ``KVLink.check``: an executor without a request would not hear of it otherwise, and could take none."""
        for shard in self._shards:
            if shard.is_gone:
                raise EngineLostError(str(shard.error("it is gone")))

    def is_connected(self, place: Place) -> bool:
        """See ``KVLink.is_connected``."""
        return place in self._peers and not any(shard.is_gone for shard in self._shards)

    async def connect(self, address: KVAddress) -> None:
        """See ``KVLink.connect``."""
        if self.is_connected(address.place):
            return
        if (address.link, address.layout) != (self.kind, self._address.layout):
            raise LinkError(f"{address.place.executor_id} has other KV: {address.layout}, here {self._address.layout}")
        try:
            parts = decode(address.peer, list[KVAddress])
        except msgspec.DecodeError as error:
            raise LinkError(f"{address.place.executor_id}: {error}") from error
        if [part.place for part in parts] != [address.place] * len(self._shards):
            raise LinkError(f"{address.place.executor_id}: its parts are not those of {len(self._shards)} processes")
        try:
            await _all(self._shards, [Connect(part) for part in parts])
        except LinkError:
            await self.disconnect(address.place)  # of those that are connected to their likes
            raise
        self._peers[address.place] = None

    async def read(self, place: Place, pairs: BlockPairs) -> None:
        """See ``KVLink.read``."""
        if not self.is_connected(place):
            raise LinkError(f"{place.executor_id} is not connected")
        if pairs:
            await _all(self._shards, [Read(place, list(pairs))] * len(self._shards))

    async def disconnect(self, place: Place) -> None:
        """See ``KVLink.disconnect``."""
        self._peers.pop(place, None)
        with contextlib.suppress(LinkError):  # who is gone is connected to nobody
            await _all(self._shards, [Disconnect(place)] * len(self._shards))

    async def close(self) -> None:
        """See ``KVLink.close``."""
        self._peers.clear()
        try:
            async with asyncio.timeout(CLOSE_S):
                await _all(self._shards, [Close()] * len(self._shards))
        except (LinkError, TimeoutError) as error:
            logger.info("a part of the KV was not closed", extra={"why": str(error) or type(error).__name__})
        for shard in self._shards:
            await shard.close()


class _Shard:
    """One of the processes, over its connection."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._number = number
        self._writer = writer
        self._calls = itertools.count()
        self._waiting: dict[int, asyncio.Future[ShardAnswer]] = {}  # by number of the call
        self._listening = asyncio.get_running_loop().create_task(self._listen(reader))

    @classmethod
    async def of(cls, number: int, connection: socket.socket) -> _Shard:
        return cls(number, *await asyncio.open_unix_connection(sock=connection))

    @property
    def is_gone(self) -> bool:
        """It answers nothing any more."""
        return self._listening.done()

    async def call(self, what: What) -> ShardAnswer:
        """Raises LinkError where it failed there, or the process is gone, which writes nothing from then on."""
        if self.is_gone:
            raise self.error("it is gone")
        number = next(self._calls)
        answer: asyncio.Future[ShardAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        send(self._writer, ShardCall(number, what))
        answered = await answer
        if answered.error:
            raise self.error(answered.error)
        return answered

    async def close(self) -> None:
        """Whoever waits for an answer is cancelled."""
        self._listening.cancel()
        for waiting in self._waiting.values():
            waiting.cancel()
        await end(self._writer)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while (answer := await receive(reader, ShardAnswer)) is not None:
                self._answered(answer)
        finally:
            for number in list(self._waiting):
                self._answered(ShardAnswer(number, "it is gone"))

    def _answered(self, answer: ShardAnswer) -> None:
        waiting = self._waiting.pop(answer.number)
        if not waiting.done():
            waiting.set_result(answer)

    def error(self, why: str) -> LinkError:
        """With the name of the process."""
        return LinkError(f"process {self._number} of the KV: {why}")


async def _all(shards: Sequence[_Shard], whats: Sequence[What]) -> list[ShardAnswer]:
    """Returns or raises once all have ended."""
    calls = (shard.call(what) for shard, what in zip(shards, whats, strict=True))
    answers: list[ShardAnswer] = []
    for ended in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended
        answers.append(ended)
    return answers
