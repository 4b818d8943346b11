"""Where each of several readers begins: the tree parted for data parallelism, BlendServe section 6.1."""

from bisect import bisect_right
from itertools import accumulate

from shared.scheduling.orders.offline.density.node import Load
from shared.scheduling.orders.offline.density.tree import DensityTree

MIN_CHANGES = 64  # of what waits, before it is parted anew
CHANGED_SHARE = 8  # and one in so many of it
_HALVINGS = 40


class ReaderParts:
    """As many parts as there are readers, in the order in which they came: each an interval of units from the left and
    one from the right, which together have an equal part of all computing and the density of the whole.

    A reader begins in its part, and goes on into those of others once it is empty. So nothing is lost, and nothing done
    twice, whatever the parts are; they follow what waits at some distance.
    """

    def __init__(self) -> None:
        self._starts: dict[str, tuple[int | None, int | None]] = {}
        self._num_changes = 0

    @property
    def readers(self) -> list[str]:
        return list(self._starts)

    def start(self, reader: str | None) -> tuple[int | None, int | None]:
        """Ranks: of its first unit from the left, and of the first that is not its own from the right. None for the
        end itself."""
        return (None, None) if reader is None else self._starts.get(reader, (None, None))

    def join(self, reader: str, tree: DensityTree) -> None:
        """It has taken something; known ones are ignored."""
        if reader not in self._starts:
            self._starts[reader] = (None, None)
            self._part(tree)

    def leave(self, reader: str, tree: DensityTree) -> None:
        """It takes no more; unknown ones are ignored."""
        if self._starts.pop(reader, None) is not None:
            self._part(tree)

    def change(self, tree: DensityTree) -> None:
        """A request came or went."""
        self._num_changes += 1
        if len(self._starts) > 1 and self._num_changes > max(MIN_CHANGES, tree.num_waiting // CHANGED_SHARE):
            self._part(tree)

    def _part(self, tree: DensityTree) -> None:
        self._num_changes = 0
        levels, count = tree.levels, len(self._starts)
        sums = [*accumulate((load for _, load in levels), _both)]
        for index, reader in enumerate(self._starts):
            if not index or not sums:
                self._starts[reader] = (None, None)
                continue
            left, right = _cut(sums, index / count)
            self._starts[reader] = _rank(tree, levels, sums, left), _rank(tree, levels, sums, right)


def _cut(sums: list[Load], share: float) -> tuple[float, float]:
    """Tokens from the left end on at which the first parts' left interval ends and their right one begins: outside of
    them is this share of all tokens, and of all reads."""
    total = sums[-1]
    outside, outside_reads = total.tokens * share, total.double_reads * share
    least, most = 0.0, outside
    for _ in range(_HALVINGS):
        left = (least + most) / 2
        right = total.tokens - (outside - left)
        reads = _reads(sums, left) + total.double_reads - _reads(sums, right)
        if reads > outside_reads:  # more of the left, which reads less
            least = left
        else:
            most = left
    return left, right


def _both(one: Load, other: Load) -> Load:
    return Load(one.tokens + other.tokens, one.double_reads + other.double_reads)


def _reads(sums: list[Load], tokens: float) -> float:
    """Of the first so many tokens."""
    _, before, here = _level_at(sums, tokens)
    return before.double_reads + (tokens - before.tokens) / here.tokens * here.double_reads


def _rank(tree: DensityTree, levels: list[tuple[int, Load]], sums: list[Load], tokens: float) -> int:
    index, before, here = _level_at(sums, tokens)
    return tree.rank_at(levels[index][0], min(1.0, (tokens - before.tokens) / here.tokens))


def _level_at(sums: list[Load], tokens: float) -> tuple[int, Load, Load]:
    """Which level has the so-manieth token, with the sums ahead of it and its own load."""
    index = min(bisect_right(sums, tokens, key=lambda each: each.tokens), len(sums) - 1)
    before = sums[index - 1] if index else Load(0, 0)
    return index, before, Load(sums[index].tokens - before.tokens, sums[index].double_reads - before.double_reads)
