"""The blocks that nobody holds, in the order in which they are taken."""

from collections.abc import Iterator

from shared.scheduling.kv.eviction.eviction import Eviction


class FreeBlocks:
    """First blocks in which nothing can be found, the latest first, then cached ones, as the eviction policy has them.
    O(1) for each block. ``cache``: the last holder of a block has let go of it, and its contents can be found; as
    ``Eviction.let_go``."""

    def __init__(self, num_blocks: int, eviction: Eviction) -> None:
        """All of them, empty. ``eviction``: of this pool alone."""
        self._empty: dict[int, None] = dict.fromkeys(reversed(range(num_blocks)))  # the next one last
        self._cached = eviction
        self.cache = eviction.let_go

    def __len__(self) -> int:
        return len(self._empty) + len(self._cached)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._empty or block_id in self._cached

    def __iter__(self) -> Iterator[int]:
        yield from reversed(self._empty)
        yield from self._cached

    @property
    def num_cached(self) -> int:
        """Those in which something can be found."""
        return len(self._cached)

    def take(self, count: int) -> list[int]:
        """The next ones, held from here on; there are as many."""
        num_empty = min(count, len(self._empty))
        taken = [self._empty.popitem()[0] for _ in range(num_empty)]
        return taken + [self._cached.evict() for _ in range(count - num_empty)]

    def hold(self, block_id: int) -> None:
        """This one is held from here on."""
        if block_id in self._empty:
            del self._empty[block_id]
        else:
            self._cached.hold(block_id)

    def empty(self, block_id: int) -> None:
        """Its last holder has let go of it, or it was cached; nothing can be found in it."""
        if block_id in self._cached:
            self._cached.hold(block_id)
        self._empty[block_id] = None
