"""KV by NIXL: RDMA, NVLink, shared memory or TCP, whatever UCX finds between two executors.

Two facts decide how it is used (UCX 1.20 and 1.21, tried with a peer that was stopped). A read that was posted can not
be called back: after it was released and its peer forgotten, bytes still came. So a read is let go of only when the
library says that it is over. And whatever copies within one host (CMA) does it inside the call that posts the read, so
that calls are made in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np

from services.executor.handover.link import BlockPairs
from shared.errors import LinkError
from shared.protocol.codec import decode, encode
from shared.protocol.handover import KVAddress, Place
from shared.replica.engine import KVRegion, KVRegions

logger = logging.getLogger(__name__)

PROGRESS_US = 10_000  # how often its thread looks without being woken; NIXL's own choice is without pause
POLL_S = 0.001
CONNECT_S = 10.0

R = TypeVar("R")


class NixlPeer(msgspec.Struct, frozen=True, array_like=True):
    """What a reader needs to know of an executor's memory."""

    metadata: bytes  # NIXL's own: how its agent is reached
    num_blocks: int
    gpu: int | None
    regions: list[tuple[int, int, int]]  # address, bytes of a block, stride


@dataclass(slots=True)
class _Connected:
    name: str  # of its agent
    num_blocks: int
    blocks: int  # handle of its prepared descriptors
    reads: set[asyncio.Task[None]] = field(default_factory=set)


class NixlLink:
    """See ``KVLink``. A descriptor of a transfer is one block of one region; descriptors that lie side by side at both
    ends are one to the library."""

    kind = "nixl"

    def __init__(self, place: Place, regions: KVRegions) -> None:
        """Registers the memory of ``regions``. Raises LinkError where the library is not there, or cannot be used."""
        self._place = place
        self._regions = regions
        self._peers: dict[Place, _Connected] = {}
        self._leaving: dict[Place, asyncio.Task[None]] = {}  # disconnected, with reads that are not over
        self._reads: set[asyncio.Task[None]] = set()  # all that the library has not let go of
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nixl")
        try:
            self._nixl = _import_nixl()
            self._scratch = _scratch(regions)
            self._start()
        except Exception as error:  # of each step another kind, bound by pybind11
            self._thread.shutdown()
            raise LinkError(f"NIXL: {error or type(error).__name__}") from error

    @property
    def address(self) -> KVAddress:
        """See ``KVLink.address``."""
        regions = [(region.address, region.block_bytes, region.stride) for region in self._regions.regions]
        peer = NixlPeer(self._metadata, self._regions.num_blocks, self._regions.gpu, regions)
        return KVAddress(self._place, self.kind, self._regions.layout, encode(peer))

    def check(self) -> None:
        """See ``KVLink.check``: it is this process's."""

    def is_connected(self, place: Place) -> bool:
        """See ``KVLink.is_connected``."""
        return place in self._peers

    async def connect(self, address: KVAddress) -> None:
        """See ``KVLink.connect``: one block is read, into memory of its own."""
        if self.is_connected(address.place):
            return
        if address.place in self._leaving:  # the library would forget reads that are under way, which go on
            raise LinkError(f"{address.place.executor_id}: an earlier connection is not over")
        if (address.link, address.layout) != (self.kind, self._regions.layout):
            raise LinkError(f"{address.place.executor_id} has other KV: {address.layout}, here {self._regions.layout}")
        try:
            peer = decode(address.peer, NixlPeer)
            connected = await self._call(self._add, peer)
        except Exception as error:
            raise LinkError(f"{address.place.executor_id}: {error or type(error).__name__}") from error
        reading = self._begin(connected, lambda: self._post_first(connected))
        try:
            done, _ = await asyncio.wait((reading,), timeout=CONNECT_S)
            if not done:
                raise LinkError(f"{address.place.executor_id} does not answer over {self.kind}")
            reading.result()
        except BaseException:
            self._leave(address.place, connected)
            raise
        self._peers[address.place] = connected

    async def read(self, place: Place, pairs: BlockPairs) -> None:
        """See ``KVLink.read``."""
        connected = self._peers.get(place)
        if connected is None:
            raise LinkError(f"{place.executor_id} is not connected")
        if pairs:
            await asyncio.shield(self._begin(connected, lambda: self._post(connected, pairs)))

    async def disconnect(self, place: Place) -> None:
        """See ``KVLink.disconnect``."""
        connected = self._peers.pop(place, None)
        if connected is not None:
            await asyncio.shield(self._leave(place, connected))

    async def close(self) -> None:
        """See ``KVLink.close``."""
        for read in self._reads:
            read.cancel()
        await asyncio.gather(*self._reads, *self._leaving.values(), return_exceptions=True)
        self._peers.clear()
        await self._call(self._end)
        self._thread.shutdown()

    def _leave(self, place: Place, connected: _Connected) -> asyncio.Task[None]:
        """The library lets go of it once its reads are over."""

        async def leave() -> None:
            try:
                if connected.reads:
                    await asyncio.wait(connected.reads)
                await self._call(self._remove, connected)
            finally:
                del self._leaving[place]

        self._leaving[place] = leaving = asyncio.get_running_loop().create_task(leave())
        leaving.add_done_callback(_look_at)
        return leaving

    def _begin(self, connected: _Connected, post: Callable[[], int]) -> asyncio.Task[None]:
        reading = asyncio.get_running_loop().create_task(self._run(post))
        for reads in (connected.reads, self._reads):
            reads.add(reading)
            reading.add_done_callback(reads.discard)
        reading.add_done_callback(_look_at)
        return reading

    async def _run(self, post: Callable[[], int]) -> None:
        """From its beginning to where the library lets go of the memory."""
        try:
            handle = await self._call(post)
        except Exception as error:
            raise LinkError(f"a read could not begin: {error or type(error).__name__}") from error
        while True:
            if await self._call(self._is_over, handle):
                return
            await asyncio.sleep(POLL_S)

    async def _call(self, function: Callable[..., R], *args: Any) -> R:
        """In the one thread that calls the agent, which is not made for several."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    # What runs in that thread

    def _start(self) -> None:
        nixl, regions = self._nixl, self._regions
        config = nixl.nixlAgentConfig()
        config.useProgThread, config.pthrDelay = True, PROGRESS_US
        config.useListenThread, config.captureTelemetry = False, False
        config.syncMode = nixl.NIXL_THREAD_SYNC_NONE
        self._agent = nixl.nixlAgent(f"{self._place.executor_id}.{self._place.epoch}", config)
        self._ucx = [self._agent.createBackend("UCX", {})]
        kind, gpu = self._memory(regions.gpu), regions.gpu or 0
        spans = [(start, end - start, gpu, "") for start, end in _spans(regions)]
        self._agent.registerMem(nixl.nixlRegDList(kind, spans), self._ucx)
        self._own_blocks = self._prepare(nixl.NIXL_INIT_AGENT, regions.num_blocks, regions.gpu, regions.regions)
        self._metadata: bytes = self._agent.getLocalMD()
        address, parts = _address(self._scratch), []
        self._agent.registerMem(nixl.nixlRegDList(kind, [(address, regions.block_bytes, gpu, "")]), self._ucx)
        for each in regions.regions:
            parts.append(KVRegion(address, each.block_bytes, each.block_bytes))
            address += each.block_bytes
        self._scratch_block = self._prepare(nixl.NIXL_INIT_AGENT, 1, regions.gpu, parts)

    def _add(self, peer: NixlPeer) -> _Connected:
        name = self._agent.loadRemoteMD(peer.metadata)
        name = name.decode() if isinstance(name, bytes) else name
        blocks = self._prepare(name, peer.num_blocks, peer.gpu, [KVRegion(*each) for each in peer.regions])
        return _Connected(name, peer.num_blocks, blocks)

    def _prepare(self, agent: str, num_blocks: int, gpu: int | None, regions: list[KVRegion]) -> int:
        """Descriptors of all blocks, a region after the other; a handle."""
        rows = [(each.address, each.block_bytes, gpu or 0, each.stride, num_blocks) for each in regions]
        strided = np.array(rows, dtype=np.uint64)
        handle: int = self._agent.prepXferDlist(agent, self._memory(gpu), strided, self._ucx)
        return handle

    def _post_first(self, connected: _Connected) -> int:
        starts = np.arange(len(self._regions.regions), dtype=np.int32)
        return self._transfer(self._scratch_block, starts, connected, starts * connected.num_blocks)

    def _post(self, connected: _Connected, pairs: BlockPairs) -> int:
        theirs, own = np.array(sorted(pairs), dtype=np.int32).T
        starts = np.arange(len(self._regions.regions), dtype=np.int32)[:, None]
        own_descriptors = (starts * self._regions.num_blocks + own).ravel()
        return self._transfer(
            self._own_blocks, own_descriptors, connected, (starts * connected.num_blocks + theirs).ravel()
        )

    def _transfer(self, own: int, own_descriptors: Any, connected: _Connected, theirs: Any) -> int:
        args = (own, own_descriptors, connected.blocks, theirs, b"", self._ucx, False)
        handle: int = self._agent.makeXferReq(self._nixl.NIXL_READ, *args)
        try:
            self._agent.postXferReq(handle, b"")
        except BaseException:
            self._agent.releaseXferReq(handle)
            raise
        return handle

    def _is_over(self, handle: int) -> bool:
        """And released. Raises LinkError where it failed."""
        try:
            status = self._agent.getXferStatus(handle)
        except Exception as error:  # each status that is an error is raised as another class
            self._agent.releaseXferReq(handle)
            raise LinkError(f"a read failed: {error or type(error).__name__}") from error
        if status == self._nixl.NIXL_IN_PROG:
            return False
        self._agent.releaseXferReq(handle)
        return True

    def _remove(self, connected: _Connected) -> None:
        self._agent.releasedDlistH(connected.blocks)
        self._agent.invalidateRemoteMD(connected.name)

    def _end(self) -> None:
        del self._agent  # ends its progress thread, which alone writes and is read from

    def _memory(self, gpu: int | None) -> Any:
        return self._nixl.DRAM_SEG if gpu is None else self._nixl.VRAM_SEG


def _look_at(task: asyncio.Task[None]) -> None:
    """Its error is seen, also where nobody waits for it any more."""
    if not task.cancelled():
        task.exception()


def _import_nixl() -> Any:
    """Its bindings, which alone have all that is to be set."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    import nixl  # late: it is optional, and loads UCX

    return nixl._bindings


def _spans(regions: KVRegions) -> list[tuple[int, int]]:
    """Memory that holds them, [start, end), each byte once: regions that take turns in it are one span."""
    spans: list[tuple[int, int]] = []
    for each in sorted(regions.regions, key=lambda region: region.address):
        end = each.address + (regions.num_blocks - 1) * each.stride + each.block_bytes
        if spans and each.address < spans[-1][1]:
            start, end_before = spans.pop()
            spans.append((start, max(end, end_before)))
        else:
            spans.append((each.address, end))
    return spans


def _scratch(regions: KVRegions) -> Any:
    """Memory for one block, which is read first of all from each peer."""
    if regions.gpu is None:
        return np.zeros(regions.block_bytes, np.uint8)
    import torch  # where its KV is on a GPU it is there

    return torch.zeros(regions.block_bytes, dtype=torch.uint8, device=f"cuda:{regions.gpu}")


def _address(memory: Any) -> int:
    address: int = memory.ctypes.data if isinstance(memory, np.ndarray) else memory.data_ptr()
    return address
