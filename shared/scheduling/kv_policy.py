"""KV policies by name: what becomes of offline requests' KV when online requests need room."""

from __future__ import annotations

from shared.scheduling.bidirectional import BidirectionalPool
from shared.scheduling.blocks import BlockPool

KV_POLICIES = ("lru", "bidirectional")  # lose it and compute it anew; share blocks from both ends, and checkpoint

KVPool = BlockPool | BidirectionalPool


def make_pool(kv_policy: str, num_blocks: int, block_size: int, num_host_slots: int) -> KVPool:
    """A new, empty one. Raises ValueError for an unknown policy."""
    if kv_policy == "lru":
        return BlockPool(num_blocks, block_size)
    if kv_policy == "bidirectional":
        return BidirectionalPool(num_blocks, block_size, num_host_slots)
    raise ValueError(f"unknown KV policy {kv_policy!r}; known: {', '.join(KV_POLICIES)}")
