"""The blocks that nobody holds, in the order in which they are taken."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from shared.scheduling.request import Kind


class FreeBlocks:
    """First blocks in which nothing can be found, then cached ones, least recently used first. Where it
    ``keeps_online``, what online requests have cached is taken after all that only offline requests have: the
    priorities of Echo (section 4.2) without its reference counts. O(1) for each block."""

    def __init__(self, num_blocks: int, keeps_online: bool) -> None:
        self._empty: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._kept: OrderedDict[int, None] = OrderedDict()  # cached, and taken after the others
        self._keeps_online = keeps_online

    def __len__(self) -> int:
        return len(self._empty) + len(self._cached) + len(self._kept)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._empty or block_id in self._cached or block_id in self._kept

    def __iter__(self) -> Iterator[int]:
        yield from self._empty
        yield from self._cached
        yield from self._kept

    @property
    def num_cached(self) -> int:
        """Those in which something can be found."""
        return len(self._cached) + len(self._kept)

    def first(self) -> int | None:
        """The one that is taken next."""
        return next(iter(self._empty or self._cached or self._kept), None)

    def take(self, num_blocks: int) -> list[int]:
        """So many, in order. There are enough."""
        taken: list[int] = []
        for blocks in (self._empty, self._cached, self._kept):
            taken += [blocks.popitem(last=False)[0] for _ in range(min(num_blocks - len(taken), len(blocks)))]
        return taken

    def add(self, block_id: int, cached_by: Kind | None) -> None:
        """It is let go of, or what was cached in it is gone. ``cached_by``: whose contents can be found in it, None
        where there are none to find."""
        if cached_by is None:
            self.discard(block_id)
            self._empty[block_id] = None
            self._empty.move_to_end(block_id, last=False)
        elif cached_by is Kind.ONLINE and self._keeps_online:
            self._kept[block_id] = None
        else:
            self._cached[block_id] = None

    def discard(self, block_id: int) -> None:
        """It is held from here on; one that was held already is no error."""
        for blocks in (self._cached, self._empty, self._kept):
            if block_id in blocks:
                del blocks[block_id]
                return
