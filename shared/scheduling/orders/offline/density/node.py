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
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeAlias

from sortedcontainers import SortedList

from shared.scheduling.orders.offline.prefix_node import Branch, Leaf

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


Line: TypeAlias = "SortedList[tuple[int, Placed]]"  # by rank; ranks differ, so that nodes are not compared


@dataclass(slots=True, eq=False, repr=False)
class DensityLeaf(Leaf):
    """One request. Unless its length is known, ``num_output_tokens`` is the most that it may have."""

    parent: DensityBranch
    num_output_tokens: int = 0
    is_sample: bool = False  # it is run for its length, ahead of the order
    is_learnt: bool = False  # its length has been told
    is_left: bool = True  # while it is taken: from which side
    expected_tokens: int = 0  # while it is taken: of output, as it was estimated then

    @property
    def is_known(self) -> bool:
        """Its length is."""
        return self.request.ends_at_limit

    @property
    def load(self) -> Load:
        return self.load_with(self.num_output_tokens if self.is_known else self.parent.estimate)

    def load_with(self, estimate: int) -> Load:
        """With so much output, if it may have as much."""
        num_tokens = self.request.num_tokens
        return request_load(
            num_tokens - self.parent.num_prefix_tokens, num_tokens, min(estimate, self.num_output_tokens)
        )


@dataclass(slots=True, eq=False, repr=False)
class Lines:
    """Children that wait, of each group that has any, by rank."""

    lines: dict[str, Line] = field(default_factory=dict)

    def in_line(self, groups: Collection[str], backwards: bool = False, start: int | None = None) -> Iterator[Placed]:
        """Children of the groups by rank; from ``start`` on, and those on the other side of it last. A group that is
        taken out meanwhile is done with."""
        of_both = self.lines if len(self.lines) < len(groups) else groups
        parts = [
            _line(self.lines[group], group, groups, backwards, start)
            for group in of_both
            if group in groups and group in self.lines
        ]
        if len(parts) == 1:
            return (node for _, node in parts[0])
        if start is None:
            return _without_repetition(heapq.merge(*parts, reverse=backwards))
        laps = ([_lap(self.lines[g], g, groups, backwards, start, lap) for g in of_both if g in groups and g in self.lines] for lap in (0, 1))
        return chain.from_iterable(_without_repetition(heapq.merge(*each, reverse=backwards)) for each in laps)


