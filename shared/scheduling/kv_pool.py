"""The block pool of each KV policy."""

from __future__ import annotations

from shared.scheduling.bidirectional import BidirectionalPool
from shared.scheduling.blocks import BlockPool
from shared.scheduling.kv_policy import require_kv_policy

KVPool = BlockPool | BidirectionalPool


def make_pool(kv_policy: str, num_blocks: int, block_size: int, num_host_slots: int) -> KVPool:
    """A new, empty one. Raises ValueError for an unknown policy."""
    if require_kv_policy(kv_policy) == "lru":
        return BlockPool(num_blocks, block_size)
    return BidirectionalPool(num_blocks, block_size, num_host_slots)
