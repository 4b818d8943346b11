"""KV policies: what becomes of offline requests' KV when online requests need room."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVPolicy:
    """``gives_way``: online requests may take what offline ones hold, who then lose it all, or, where the pool
    ``shares_blocks`` from both ends, are paused and lose no more than what is overwritten, and that to the host."""

    name: str
    gives_way: bool
    shares_blocks: bool


LRU = KVPolicy("lru", gives_way=True, shares_blocks=False)

KV_POLICIES = {
    policy.name: policy
    for policy in (
        LRU,
        KVPolicy("bidirectional", gives_way=True, shares_blocks=True),  # BROS, section 5
        KVPolicy("keep-resident", gives_way=False, shares_blocks=False),  # to compare with: online requests wait
    )
}


def kv_policy_named(name: str) -> KVPolicy:
    """Raises ValueError that lists the known ones."""
    try:
        return KV_POLICIES[name]
    except KeyError:
        raise ValueError(f"unknown KV policy {name!r}; known: {', '.join(KV_POLICIES)}") from None
