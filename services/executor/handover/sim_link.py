"""The link of an engine without a model: a read takes as long as between the GPUs that it stands for."""

import asyncio

from services.executor.handover.link import BlockPairs
from shared.errors import LinkError
from shared.protocol.executors import EngineSpec
from shared.protocol.handover import KVAddress, Place
from shared.simulation.link import Link


class SimLink:
    """See ``KVLink``. Reads come one after the other."""

    kind = "sim"

    def __init__(self, place: Place, spec: EngineSpec, link: Link, time_scale: float = 1.0) -> None:
        """``time_scale``: as the engine's."""
        self._link = link
        self._time_scale = time_scale
        self._block_size = spec.block_size
        layout = f"sim {spec.model} {spec.dtype}: blocks of {spec.block_size}"
        self._address = KVAddress(place, self.kind, layout, b"")
        self._peers: dict[Place, None] = {}
        self._turn = asyncio.Lock()

    @property
    def address(self) -> KVAddress:
        """See ``KVLink.address``."""
        return self._address

    def check(self) -> None:
        """See ``KVLink.check``: there is none."""

    def is_connected(self, place: Place) -> bool:
        """See ``KVLink.is_connected``."""
        return place in self._peers

    async def connect(self, address: KVAddress) -> None:
        """See ``KVLink.connect``."""
        if (address.link, address.layout) != (self.kind, self._address.layout):
            raise LinkError(f"{address.place.executor_id} has other KV: {address.layout}, here {self._address.layout}")
        self._peers[address.place] = None

    async def read(self, place: Place, pairs: BlockPairs) -> None:
        """See ``KVLink.read``."""
        async with self._turn:
            if place in self._peers:
                await asyncio.sleep(self._link.read_s(len(pairs) * self._block_size) * self._time_scale)
            if place not in self._peers:
                raise LinkError(f"{place.executor_id} is not connected")

    async def disconnect(self, place: Place) -> None:
        """See ``KVLink.disconnect``."""
        self._peers.pop(place, None)

    async def close(self) -> None:
        """See ``KVLink.close``."""
        self._peers.clear()
