"""The eviction policies by name."""

from collections.abc import Callable

from shared.named import named
from shared.scheduling.kv.eviction.eviction import Eviction
from shared.scheduling.kv.eviction.lru import Lru
from shared.scheduling.kv.eviction.online_first import OnlineFirst
from shared.scheduling.kv.eviction.task_aware import TaskAware

EVICTIONS: dict[str, Callable[[], Eviction]] = {
    "lru": Lru,
    "online-first": OnlineFirst,
    "task-aware": TaskAware,
}


def make_eviction(name: str) -> Eviction:
    """A new one, for one pool. Raises ValueError that lists the known names."""
    return named(EVICTIONS, name, "KV eviction")()
