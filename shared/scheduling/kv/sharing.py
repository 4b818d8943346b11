"""What becomes of offline requests' KV when online requests need room."""

from collections.abc import Callable
from dataclasses import dataclass

from shared.named import named
from shared.scheduling.kv.bidirectional import BidirectionalPool
from shared.scheduling.kv.blocks import BlockPool
from shared.scheduling.kv.eviction.eviction import Eviction
from shared.scheduling.kv.pool import KVPool
from shared.scheduling.request import Kind


@dataclass(frozen=True, slots=True)
class KVSharing:
    """``make_pool``: a new, empty one of (blocks, tokens of a block, KV slots of host memory behind it, eviction).
    ``gives_way``: online requests may take what offline ones hold; else they wait for it.
    ``pauses``: offline requests that give way lose no more than what is overwritten, and that to the host; else all."""

    name: str
    make_pool: Callable[[int, int, int, Eviction], KVPool]
    gives_way: bool = True
    pauses: bool = False

    @property
    def is_by_kind(self) -> bool:
        """Requests find what others of their own kind have computed, and nothing of the other kind."""
        return self.pauses

    def num_offline_blocks(self, num_held: int, num_in_flight: int) -> int:
        """M_off of HyGen Alg. 2: blocks that online requests may take from offline ones. ``num_held``: those that
        offline requests hold that are not paused; ``num_in_flight``: those of them that a step in flight reads."""
        return max(0, num_held - num_in_flight) if self.gives_way else 0

    def is_paused_by_giving_way(self, kind: Kind) -> bool:
        """What a request of this kind that gives way becomes; else it loses all its KV."""
        return self.pauses and kind is Kind.OFFLINE


def _block_pool(num_blocks: int, block_size: int, num_host_slots: int, eviction: Eviction) -> KVPool:
    return BlockPool(num_blocks, block_size, eviction)


KV_SHARINGS = {
    sharing.name: sharing
    for sharing in (
        KVSharing("recompute", _block_pool),
        KVSharing("bidirectional", BidirectionalPool, pauses=True),  # BROS, section 5
        KVSharing("keep-resident", _block_pool, gives_way=False),  # to compare with
    )
}


def kv_sharing_named(name: str) -> KVSharing:
    """Raises ValueError that lists the known names."""
    return named(KV_SHARINGS, name, "KV sharing")
