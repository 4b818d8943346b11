"""Where scanners go first and last, by what readers took lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shared.scheduling.orders.offline.density.node import Bundle, DensityBranch, DensityLeaf, Placed, level_of
from shared.scheduling.orders.offline.density.parts import ReaderParts
from shared.scheduling.orders.offline.density.tree import DensityTree

MAX_PATHS = 4  # of a reader: two scanners, and as many turns


@dataclass(frozen=True, slots=True)
class Bearings:
    """Where a scanner goes: at each branch first to the one child on its ``own`` path, by that path's home; last to
    those that are ``avoided``; among the root's from ``start`` on, a rank, and to those before it after them."""

    own: Mapping[DensityBranch | Bundle, DensityBranch]
    avoided: Collection[Placed] = ()
    start: int | None = None


class Readers:
    """Each goes on with what shares a prefix with what it took, before anything else on that side: it is not put off
    because it becomes denser, or less dense, as others of it are taken. It keeps away from where others are, and begins
    in its own part."""

    def __init__(self, tree: DensityTree) -> None:
        self._tree = tree
        self._parts = ReaderParts()
        self._prompts: dict[str | None, OrderedDict[bytes, bytes]] = {}  # by shared path, the latest last

    def take(self, leaf: DensityLeaf, reader: str | None) -> None:
        """The reader takes a request that waits in the order."""
        if leaf.parent.is_open:
            return
        prompts = self._prompts.setdefault(reader, OrderedDict())
        path = leaf.prompt[: leaf.start]
        prompts[path] = leaf.prompt
        prompts.move_to_end(path)
        if len(prompts) > MAX_PATHS:
            prompts.popitem(last=False)

    def change(self, reader: str | None = None) -> None:
        """A request has come or gone; to a reader, where it was taken."""
        if reader is not None:
            self._parts.join(reader, self._tree)
        self._parts.change(self._tree)

    def leave(self, reader: str) -> None:
        self._prompts.pop(reader, None)
        self._parts.leave(reader, self._tree)

    def bearings(self, reader: str | None, groups: Collection[str]) -> tuple[Bearings, Bearings]:
        """From the left, and from the right. The leftmost of its paths is the left scanner's own, and the rightmost
        that of the right one, as long as these are on that side."""
        paths = [path for prompt in self._prompts.get(reader, {}).values() if (path := self._closed(prompt, groups))]
        paths.sort(key=lambda path: [node.rank for node in path])
        left, right = ([path for path in paths if self._may_be(path, is_left)] for is_left in (True, False))
        avoided = self._avoided(reader)
        starts = self._parts.start(reader)
        return (
            Bearings(self._by_home(left[0] if left else []), avoided, starts[0]),
            Bearings(self._by_home(right[-1] if right else []), avoided, starts[1]),
        )

    def _closed(self, prompt: bytes, groups: Collection[str]) -> list[DensityBranch]:
        """The closed branches on the path to a prompt below which somebody of the groups waits, from the top down."""
        return [node for node in self._tree.path(prompt) if not node.is_open and node.waits(groups)]

    def _may_be(self, path: list[DensityBranch], is_left: bool) -> bool:
        """Unless the largest part that is not about as dense as the whole is on the other side."""
        of_root = self._tree.root.load.level
        level = next((level for node in path if (level := level_of(node.rank)) != of_root), of_root)
        return level <= of_root if is_left else level >= of_root

    def _by_home(self, path: list[DensityBranch]) -> dict[DensityBranch | Bundle, DensityBranch]:
        return {self._tree.home(node): node for node in path}

    def _avoided(self, reader: str | None) -> set[Placed]:
        """Where others are; membership only, never iterated."""
        if reader is None:
            return set()
        others = (each for key, each in self._prompts.items() if key not in (reader, None))
        return {node for each in others for prompt in each.values() for node in self._tree.path(prompt)}
