"""What a prefix trie is made of: branches, leaves, and what is below a branch of each group of requests."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from sortedcontainers import SortedList

from shared.scheduling.request import Request


@dataclass(slots=True, eq=False, repr=False)
class Leaf:
    """One request; ``prompt[start:end]`` is what it shares with no other."""

    parent: Branch
    prompt: bytes
    start: int
    end: int
    rank: int
    request: Request
    group: str
    is_waiting: bool = True

    def groups(self) -> Collection[str]:
        return (self.group,)

    def num_waiting(self, group: str) -> int:
        """Of its own group."""
        return int(self.is_waiting)

    def num_waiting_of_all(self) -> int:
        return int(self.is_waiting)


@dataclass(slots=True, eq=False, repr=False)
class Branch:
    """What all requests below share. ``prompt[:end]`` is the path from the root, ``prompt[start:end]`` the edge.
    ``rank`` is its place among its siblings: the first of each came in this order."""

    parent: Branch | None
    prompt: bytes  # of any request below
    start: int
    end: int
    rank: int
    children: dict[bytes | str, Node] = field(default_factory=dict)  # by the trie's key of each edge
    parts: dict[str, Part] = field(default_factory=dict)  # of groups that have a request below, waiting or held
    _num_ranks: int = 0

    def next_rank(self) -> int:
        self._num_ranks += 1
        return self._num_ranks - 1

    def groups(self) -> Collection[str]:
        return self.parts.keys()

    def num_waiting(self, group: str) -> int:
        part = self.parts.get(group)
        return part.num_waiting if part is not None else 0

    def num_waiting_of_all(self) -> int:
        """Below it, of any group."""
        return sum(part.num_waiting for part in self.parts.values())

    def part(self, group: str) -> Part:
        """Made where there is none."""
        part = self.parts.get(group)
        if part is None:
            part = self.parts[group] = Part()
        return part

    def replace(self, old: Node, new: Node) -> None:
        """One that has the same requests below takes a child's place."""
        for group in old.groups():
            children = self.parts[group].children
            children.remove((old.rank, old))
            children.add((old.rank, new))
        new.rank = old.rank

    def waiting(self, groups: Collection[str]) -> Iterator[Node]:
        """Children with waiting requests of the groups, by rank. A group that is taken out meanwhile is done with."""
        of_both = self.parts if len(self.parts) < len(groups) else groups
        parts = [self._waiting_of(group, groups) for group in of_both if group in groups and group in self.parts]
        if len(parts) == 1:
            return (node for _, node in parts[0])
        return _without_repetition(heapq.merge(*parts))

    def _waiting_of(self, group: str, groups: Collection[str]) -> Iterator[tuple[int, Node]]:
        for ranked in self.parts[group].children:
            if group not in groups:
                return
            if ranked[1].num_waiting(group):
                yield ranked


@dataclass(slots=True, eq=False, repr=False)
class Part:
    """What a branch has below it of one group. ``children``: by rank; ranks differ, so that nodes are not compared."""

    num_waiting: int = 0
    children: SortedList[tuple[int, Node]] = field(default_factory=SortedList)


Node: TypeAlias = Branch | Leaf


def _without_repetition(ranked: Iterator[tuple[int, Node]]) -> Iterator[Node]:
    """Several groups may have requests below the same child."""
    last: Node | None = None
    for _, node in ranked:
        if node is not last:
            last = node
            yield node
