"""KV policies: what becomes of offline requests' KV when online requests need room, and of what is only cached."""

from __future__ import annotations

from dataclasses import dataclass

from shared.named import named


@dataclass(frozen=True, slots=True)
class KVPolicy:
    """``gives_way``: online requests may take what offline ones hold, who then lose it all, or, where the pool
    ``shares_blocks`` from both ends, are paused and lose no more than what is overwritten, and that to the host.
    ``keeps_online``: of what is cached and held by nobody, the offline requests' goes before the online ones'."""

    name: str
    gives_way: bool
    shares_blocks: bool
    keeps_online: bool = False


LRU = KVPolicy("lru", gives_way=True, shares_blocks=False)

KV_POLICIES = {
    policy.name: policy
    for policy in (
        LRU,
        KVPolicy("priority", gives_way=True, shares_blocks=False, keeps_online=True),  # after Echo, section 4.2
        KVPolicy("bidirectional", gives_way=True, shares_blocks=True),  # BROS, section 5
        KVPolicy("bidirectional-priority", gives_way=True, shares_blocks=True, keeps_online=True),
        KVPolicy("keep-resident", gives_way=False, shares_blocks=False),  # to compare with: online requests wait
    )
}


def kv_policy_named(name: str) -> KVPolicy:
    """Raises ValueError that lists the known ones."""
    return named(KV_POLICIES, name, "KV policy")


KV_EVICTIONS = ("lru", "online-first")
KV_SHARINGS = ("recompute", "keep-resident", "bidirectional")


def kv_policy_of(sharing: str, eviction: str) -> KVPolicy:
    """That of a strategy."""
    keeps_online = eviction == "online-first"
    return KVPolicy(f"{sharing}, {eviction}", sharing != "keep-resident", sharing == "bidirectional", keeps_online)
