"""KV policies by name: what becomes of offline requests' KV when online requests need room."""

from __future__ import annotations

KV_POLICIES = ("lru", "bidirectional")  # lose it and compute it anew; share blocks from both ends, and checkpoint


def require_kv_policy(name: str) -> str:
    """The name. Raises ValueError that lists the known ones."""
    if name not in KV_POLICIES:
        raise ValueError(f"unknown KV policy {name!r}; known: {', '.join(KV_POLICIES)}")
    return name
