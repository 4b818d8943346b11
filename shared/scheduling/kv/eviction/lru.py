"""The eviction of vLLM: what was let go of first."""

from collections import OrderedDict
from collections.abc import Iterator

from shared.scheduling.request import Kind


class Lru:
    """Least recently used first."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_id: object) -> bool:
        return block_id in self._blocks

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def let_go(self, block_id: int, key: bytes, kind: Kind, num_hits: int) -> None:
        """It is the most recently used one."""
        self._blocks[block_id] = None

    def hold(self, block_id: int) -> None:
        """Used again."""
        del self._blocks[block_id]

    def evict(self) -> int:
        """The least recently used one."""
        return self._blocks.popitem(last=False)[0]
