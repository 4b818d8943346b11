"""How an executor reads KV out of another's memory."""

from collections.abc import Sequence
from typing import Protocol

from shared.protocol.handover import KVAddress, Place

BlockPairs = Sequence[tuple[int, int]]  # (block of the other, own block)


class KVLink(Protocol):
    """One executor's end. It is connected to others when they meet, since the first transfer takes longest."""

    kind: str  # executors whose links are of one kind reach each other

    @property
    def address(self) -> KVAddress:
        """For others, who connect to it."""

    def check(self) -> None:
        """Raises EngineLostError where the memory that it is the link of is gone."""

    def is_connected(self, place: Place) -> bool:
        """Reads from there can begin."""

    async def connect(self, address: KVAddress) -> None:
        """Have reads from there be fast from the first on; nothing where it is connected. Raises LinkError."""

    async def read(self, place: Place, pairs: BlockPairs) -> None:
        """Return when the own blocks hold what the other's held. Raises LinkError where they do not and nothing is
        written to them any more.

        Until it has returned or raised they may be written, also where the other has long been silent: nobody can take
        back what was asked of its network card or its process. A caller that is cancelled does not hear of the end, and
        has to leave the blocks alone until the link is closed."""

    async def disconnect(self, place: Place) -> None:
        """Its incarnation is gone. What reads from there goes on to its end, which is a LinkError."""

    async def close(self) -> None:
        """Nobody reads from here any more, and nothing is written here. Comes before the memory is freed."""
