"""What a tree by compute density is made of: BlendServe section 3.1 and 3.2.

Compute is counted in tokens, (1 - s) T_comp of section 2.4: those of each edge once, and the output of each request.
Memory is counted in KV tokens that decodes read, p d + d^2 / 2 of section 2.3 for p tokens of prompt and d of output,
here twice that, so that all sums are whole numbers and stay exact. A device turns both into times by a factor each,
which changes neither the order of densities nor the equations of section 3.4.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from sortedcontainers import SortedList

from shared.scheduling.orders.offline.density.lengths import Seen
from shared.scheduling.orders.offline.prefix_node import Branch, Leaf, Part
from shared.scheduling.packed_prompt import TOKEN_BYTES

LEVELS_PER_OCTAVE = 16  # densities that differ by less than 4% are alike
_LEVEL_OF_ONE = 4096
_NUMBER_BITS = 44
_LOG_SCALE = LEVELS_PER_OCTAVE / math.log(2.0)


class Load(NamedTuple):
    """``tokens`` that are computed, and twice the KV tokens that decodes read."""

    tokens: int
    double_reads: int

    @property
    def density(self) -> float:
        """Tokens computed for each KV token that is read."""
        return 2.0 * self.tokens / self.double_reads

    @property
    def level(self) -> int:
        """Of its density, from the densest down: so that what changes by little keeps its place."""
        return _LEVEL_OF_ONE - math.floor(math.log(self.tokens / self.double_reads) * _LOG_SCALE)


NO_LOAD = Load(0, 0)


def request_load(num_own_tokens: int, num_prompt_tokens: int, num_output_tokens: int) -> Load:
    """Of one request; ``num_own_tokens``: those of its prompt that are not counted elsewhere."""
    d = num_output_tokens
    return Load(num_own_tokens + d, (2 * num_prompt_tokens + d) * d)


def rank_of(level: int, number: int) -> int:
    """By level, then by ``number``, which differs among those that may be compared."""
    return level << _NUMBER_BITS | number


def level_of(rank: int) -> int:
    return rank >> _NUMBER_BITS


def number_of(rank: int) -> int:
    return rank & ((1 << _NUMBER_BITS) - 1)


class Lines:
    """What has children in an order: of each group that has any, those with something that waits, by rank. Ranks
    differ, so that nodes are not compared."""

    __slots__ = ()
    lines: dict[str, SortedList[tuple[int, Placed]]]

    def in_line(
        self, groups: Collection[str], backwards: bool = False, low: int | None = None, high: int | None = None
    ) -> Iterator[Placed]:
        """Children of the groups, by ranks from ``low`` on and below ``high``. A group that is taken out meanwhile is
        done with."""
        of_both = self.lines if len(self.lines) < len(groups) else groups
        here = [group for group in of_both if group in groups and group in self.lines]
        parts = [self._line(group, groups, backwards, low, high) for group in here]
        if len(parts) == 1:
            return (node for _, node in parts[0])
        return _without_repetition(heapq.merge(*parts, reverse=backwards))

    def waits(self, groups: Collection[str]) -> bool:
        """Anybody of the groups, below it; the smaller of both sides is looked through."""
        if len(groups) < len(self.lines):
            return any(group in self.lines for group in groups)
        return any(group in groups for group in self.lines)

    def _line(
        self, group: str, groups: Collection[str], backwards: bool, low: int | None, high: int | None
    ) -> Iterator[tuple[int, Placed]]:
        ends = (None if low is None else (low,), None if high is None else (high,))
        for ranked in self.lines[group].irange(*ends, (True, False), backwards):
            if group not in groups:
                return
            yield ranked


@dataclass(slots=True, eq=False, repr=False)
class DensityLeaf(Leaf):
    """One request. ``num_output_tokens``: its length where that is known, else the most that it may have."""

    parent: DensityBranch
    num_output_tokens: int = 1
    is_sample: bool = False  # it runs ahead of the order, for its length
    is_placed: bool = False  # it is in the order, and counts
    is_learnt: bool = False  # its length has been told
    is_left: bool = True  # while it is taken: from which side
    expected_tokens: int = 0  # while it is taken: of output, as they were estimated then

    @property
    def is_known(self) -> bool:
        """Its length is."""
        return self.request.ends_at_limit

    @property
    def num_own_tokens(self) -> int:
        """Of its prompt, those that it shares with no other."""
        return max(0, self.request.num_tokens - self.parent.num_prefix_tokens)

    @property
    def expected(self) -> int:
        """Tokens of output."""
        return self.num_output_tokens if self.is_known else min(self.parent.estimate, self.num_output_tokens)

    @property
    def load(self) -> Load:
        return request_load(self.num_own_tokens, self.request.num_tokens, self.expected)

    def lines_of(self) -> Collection[str]:
        return (self.group,)


class Bundle(Lines):
    """Requests of unknown length directly below a branch, by arrival: they have one estimate, and so about one density,
    from 2 / d for the shortest prompts to 1 / d for the longest ones. The bits of the most output that they may have
    are the same; that is taken to be its mean for all of them."""

    __slots__ = (
        "lines",
        "load",
        "num_limit_tokens",
        "num_own_tokens",
        "num_prompt_tokens",
        "num_waiting",
        "parent",
        "rank",
    )

    def __init__(self, parent: DensityBranch, rank: int) -> None:
        self.lines = {}
        self.parent = parent
        self.rank = rank
        self.load = NO_LOAD  # as it was last stated
        self.num_waiting = self.num_prompt_tokens = self.num_own_tokens = self.num_limit_tokens = 0

    def count(self, leaf: DensityLeaf, change: int) -> None:
        """It comes, 1, or goes, -1."""
        self.num_waiting += change
        self.num_prompt_tokens += change * leaf.request.num_tokens
        self.num_own_tokens += change * leaf.num_own_tokens
        self.num_limit_tokens += change * leaf.num_output_tokens

    def expected_load(self) -> Load:
        """With its parent's estimate."""
        n = self.num_waiting
        if not n:
            return NO_LOAD
        d = min(self.parent.estimate, self.num_limit_tokens // n)
        return Load(self.num_own_tokens + n * d, (2 * self.num_prompt_tokens + n * d) * d)

    def lines_of(self) -> Collection[str]:
        return self.lines.keys()


class DensityBranch(Branch, Lines):
    """What all requests below share. ``lines``: while it is closed; one that is open (Alg. 2) has its children in the
    root's. ``tokens`` and ``double_reads``: of all that waits below, without its own edge."""

    __slots__ = (
        "bundles",
        "double_reads",
        "estimate",
        "inherited",
        "is_apart",
        "is_open",
        "is_stale",
        "lines",
        "num_placed",
        "num_waiting_below",
        "seen",
        "tokens",
    )
    parent: DensityBranch | None

    def __init__(self, parent: DensityBranch | None, prompt: bytes, start: int, end: int, rank: int) -> None:
        super().__init__(parent, prompt, start, end, rank, parts=_NO_PARTS)
        self.lines = {}
        self.bundles: dict[int, Bundle] = {}  # by the bits of the most output; those with something in them
        self.is_open = parent is None
        self.tokens = self.double_reads = 0
        self.num_waiting_below = 0
        self.num_placed = 0  # children with something that waits; a bundle is one
        self.seen: Seen | None = None  # None where nothing below has ended
        self.estimate = self.inherited = 0  # output tokens: directly below it, and where nothing below has ended
        self.is_apart = False  # it is about to have another place, and counts nowhere
        self.is_stale = False  # its branches are to be told what they inherit

    @property
    def num_prefix_tokens(self) -> int:
        """Of the path from the root."""
        return self.end // TOKEN_BYTES

    @property
    def load(self) -> Load:
        """With its own edge, where anything waits below."""
        if not self.num_waiting_below:
            return NO_LOAD
        return Load(self.tokens + (self.end - self.start) // TOKEN_BYTES, self.double_reads)

    def lines_of(self) -> Collection[str]:
        return self.lines.keys()

    def branches(self) -> list[DensityBranch]:
        """Directly below."""
        return [child for child in self.children.values() if isinstance(child, DensityBranch)]

    def placed(self) -> Iterator[Placed]:
        """Its children that have something that waits, in no order of importance."""
        for child in self.children.values():
            if isinstance(child, DensityBranch):
                if child.num_waiting_below and not child.is_apart:
                    yield child
            elif isinstance(child, DensityLeaf) and child.is_placed and child.is_known:
                yield child
        yield from self.bundles.values()


Placed: TypeAlias = DensityBranch | Bundle | DensityLeaf
_NO_PARTS: dict[str, Part] = {}  # of no branch here: its children are in lines


def _without_repetition(ranked: Iterator[tuple[int, Placed]]) -> Iterator[Placed]:
    """Several groups may have requests below the same child."""
    last: Placed | None = None
    for _, node in ranked:
        if node is not last:
            last = node
            yield node
