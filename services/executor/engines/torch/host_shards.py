"""Host slots of a model that several processes share: each has a pool with its part of every slot, and copies it beside
its steps when the executor says so, over a socket."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection

import msgspec

from services.executor.engines.torch.host_pool import HostSlots
from shared.errors import EngineError, EngineLostError
from shared.protocol.codec import decode, encode
from shared.scheduling.kv.slot_transfers import SlotOperations


class ShardedHostSlots(HostSlots):
    """As many slots as the smallest pool has, as slow as the slowest. ``wait`` raises EngineError where a process could
    not copy its part, EngineLostError where one is gone."""

    def __init__(self, connections: Sequence[socket.socket]) -> None:
        """``connections``: one to each process, which answers it by ``serve_host_slots``."""
        super().__init__()
        self._shards = [_Shard(number, connection) for number, connection in enumerate(connections)]
        self.num_slots = min(shard.pool.num_slots for shard in self._shards)
        self.ms_per_slot = max(shard.pool.ms_per_slot for shard in self._shards)

    def close(self) -> None:
        """See ``HostSlots.close``."""
        for shard in self._shards:
            shard.close()

    def _begin(self, copies: SlotOperations) -> Sequence[Future[None]]:
        return [shard.begin(copies) for shard in self._shards]


class PoolFacts(msgspec.Struct, frozen=True):
    """Of a process's pool; what it says first."""

    num_slots: int
    ms_per_slot: float


class _Shard:
    """One of the processes. It is asked for one copy after the other, and answers why it failed, if it did."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self._number = number
        self._connection = Connection(connection.detach())
        self._asking = ThreadPoolExecutor(1, f"host-slots-{number}")
        self.pool = decode(self._connection.recv_bytes(), PoolFacts)

    def begin(self, copies: SlotOperations) -> Future[None]:
        """After all that were begun before."""
        return self._asking.submit(self._ask, encode(copies))

    def close(self) -> None:
        """Once it has answered."""
        self._asking.shutdown()
        self._connection.close()

    def _ask(self, copies: bytes) -> None:
        try:
            self._connection.send_bytes(copies)
            why = self._connection.recv_bytes().decode()
        except (EOFError, OSError) as error:
            raise EngineLostError(f"process {self._number} of the model is gone: {error!r}") from error
        if why:
            raise EngineError(f"process {self._number} of the model did not copy slots: {why}")


def serve_host_slots(pool: HostSlots, connection: socket.socket) -> None:
    """Until the executor is gone, or has closed its end; the pool is closed then."""
    with Connection(connection.detach()) as executor, suppress(EOFError, OSError):
        executor.send_bytes(encode(PoolFacts(pool.num_slots, pool.ms_per_slot)))
        while True:
            copies = decode(executor.recv_bytes(), SlotOperations)
            executor.send_bytes(_copy(pool, copies).encode())
    pool.close()


def _copy(pool: HostSlots, copies: SlotOperations) -> str:
    """Why it failed, in words; empty where it is done."""
    try:
        pool.wait([copies])
    except Exception as error:  # torch raises what it likes
        return f"{type(error).__name__}: {error}"
    return ""
