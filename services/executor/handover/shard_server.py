"""The end of a process that has a part of an executor's KV: a link of its own, used as the executor says."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from services.executor.handover.link import KVLink
from services.executor.handover.shard_calls import (
    Begin,
    Close,
    Connect,
    Disconnect,
    Read,
    ShardAnswer,
    ShardCall,
    end,
    receive,
    send,
)
from shared.errors import LinkError
from shared.protocol.handover import KVAddress, Place

logger = logging.getLogger(__name__)


def serve_in_thread(path: Path, make_link: Callable[[Place], KVLink]) -> None:
    """``serve_shard`` as ``accept_in_thread`` does."""
    accept_in_thread(path, "kv-shard", partial(serve_shard, make_link))


def serve_shard(make_link: Callable[[Place], KVLink], connection: socket.socket) -> None:
    """See ``ShardServer``."""
    asyncio.run(ShardServer(make_link).serve(connection))


def accept_in_thread(path: Path, name: str, serve: Callable[[socket.socket], None]) -> None:
    """Serve the first who connects to the socket ``path``, in a thread of this name beside all that this process does.
    Raises OSError where there can be no such socket."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        listener.listen(1)
    except OSError:
        listener.close()
        raise
    threading.Thread(target=_accept, args=(listener, serve), name=name, daemon=True).start()


def _accept(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    with listener:
        connection, _ = listener.accept()
    serve(connection)


class ShardServer:
    """Calls are under way at the same time, as they are at a link."""

    def __init__(self, make_link: Callable[[Place], KVLink]) -> None:
        """``make_link``: called once others are to be met, in a thread; may raise LinkError."""
        self._make_link = make_link
        self._link: KVLink | None = None

    async def serve(self, connection: socket.socket) -> None:
        """Until the executor is gone, or has closed its end."""
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        calls: set[asyncio.Task[None]] = set()
        while (call := await receive(reader, ShardCall)) is not None:
            answering = asyncio.get_running_loop().create_task(self._answer(call, writer))
            calls.add(answering)
            answering.add_done_callback(calls.discard)
        await self._close()
        await asyncio.gather(*calls, return_exceptions=True)
        await end(writer)

    async def _answer(self, call: ShardCall, writer: asyncio.StreamWriter) -> None:
        """Nothing to a read that is cancelled because its link is closed, which nobody may take for its end."""
        try:
            answer = ShardAnswer(call.number, address=await self._do(call))
        except LinkError as error:
            answer = ShardAnswer(call.number, str(error))
        except Exception as error:
            logger.exception("a call to a part of the KV failed")
            answer = ShardAnswer(call.number, repr(error))
        send(writer, answer)

    async def _do(self, call: ShardCall) -> KVAddress | None:
        match call.what:
            case Begin(place):
                self._link = await asyncio.to_thread(self._make_link, place)
                return self._link.address
            case Connect(address):
                await self._begun().connect(address)
            case Read(place, pairs):
                await self._begun().read(place, pairs)
            case Disconnect(place):
                await self._begun().disconnect(place)
            case Close():
                await self._close()
        return None

    def _begun(self) -> KVLink:
        if self._link is None:
            raise LinkError("it has no link")
        return self._link

    async def _close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()
