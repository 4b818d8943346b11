"""The block pool of each KV policy."""

from __future__ import annotations

from shared.scheduling.kv.bidirectional import BidirectionalPool
from shared.scheduling.kv.blocks import BlockPool
from shared.scheduling.kv.policy import KVPolicy

KVPool = BlockPool | BidirectionalPool


def make_pool(kv_policy: KVPolicy, num_blocks: int, block_size: int, num_host_slots: int) -> KVPool:
    """A new, empty one."""
    if kv_policy.shares_blocks:
        return BidirectionalPool(num_blocks, block_size, num_host_slots, kv_policy.keeps_online)
    return BlockPool(num_blocks, block_size, kv_policy.keeps_online)
