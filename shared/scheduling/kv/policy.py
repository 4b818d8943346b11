"""KV policies: names for an eviction with a sharing."""

from __future__ import annotations

from dataclasses import dataclass

from shared.named import named
from shared.scheduling.kv.eviction.evictions import make_eviction
from shared.scheduling.kv.pool import KVPool
from shared.scheduling.kv.sharing import KVSharing, kv_sharing_named


@dataclass(frozen=True, slots=True)
class KVPolicy:
    """``kv_sharing``: a name that ``kv_sharing_named`` knows; ``kv_eviction``: one that ``make_eviction`` knows."""

    name: str
    kv_sharing: str
    kv_eviction: str

    @property
    def sharing(self) -> KVSharing:
        return kv_sharing_named(self.kv_sharing)

    def make_pool(self, num_blocks: int, block_size: int, num_host_slots: int) -> KVPool:
        """A new, empty one."""
        return self.sharing.make_pool(num_blocks, block_size, num_host_slots, make_eviction(self.kv_eviction))


LRU = KVPolicy("lru", "recompute", "lru")

KV_POLICIES = {
    policy.name: policy
    for policy in (
        LRU,
        KVPolicy("priority", "recompute", "online-first"),
        KVPolicy("bidirectional", "bidirectional", "lru"),
        KVPolicy("bidirectional-priority", "bidirectional", "online-first"),
        KVPolicy("keep-resident", "keep-resident", "lru"),
    )
}


def kv_policy_named(name: str) -> KVPolicy:
    """Raises ValueError that lists the known ones."""
    return named(KV_POLICIES, name, "KV policy")
