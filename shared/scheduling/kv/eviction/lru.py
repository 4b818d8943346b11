"""The eviction of vLLM: what was let go of first."""

from collections import OrderedDict

from shared.scheduling.kv.eviction.eviction import Eviction
from shared.scheduling.request import Kind


class Lru(OrderedDict[int, None], Eviction):
    """Least recently used first."""

    def let_go(self, block_id: int, key: bytes, kind: Kind, num_hits: int) -> None:
        self[block_id] = None

    def hold(self, block_id: int) -> None:
        del self[block_id]

    def evict(self) -> int:
        return self.popitem(last=False)[0]
