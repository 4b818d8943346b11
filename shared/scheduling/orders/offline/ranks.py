"""Who is at the lowest rank, of thousands whose ranks change one at a time."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import ChainMap
from collections.abc import Iterator, MutableMapping
from typing import TypeAlias

Rank: TypeAlias = tuple[float, int]  # the cell of what it was charged; and, lowest first, minus the precedence


class Ranks:
    """Names in the order in which they came, each at a rank or at none. A move costs no look at each of the others."""

    def __init__(self) -> None:
        self._num_places = 0  # given out so far
        self._places: dict[str, int] = {}
        self._names: dict[int, str] = {}  # by place
        self._ranks: MutableMapping[str, Rank | None] = {}
        self._places_at: dict[Rank, list[int]] = {}  # ascending; as many ranks as cells, which are few

    def add(self, name: str) -> None:
        """A new one, at none."""
        self._places[name], self._names[self._num_places] = self._num_places, name
        self._num_places += 1

    def forget(self, name: str) -> None:
        """It is at none."""
        del self._names[self._places.pop(name)]
        self._ranks.pop(name, None)

    def move(self, name: str, rank: Rank | None) -> None:
        before, place = self._ranks.get(name), self._places[name]
        if before == rank:
            return
        if before is not None:
            places = self._to_change(before)
            del places[bisect_left(places, place)]
            if not places:
                del self._places_at[before]
        if rank is not None:
            insort(self._to_change(rank), place)
        self._ranks[name] = rank

    @property
    def lowest(self) -> Rank | None:
        return min(self._places_at, default=None)

    def first(self) -> Iterator[str]:
        """Those at the lowest rank; nobody may move meanwhile."""
        lowest = self.lowest
        return iter(()) if lowest is None else map(self._names.__getitem__, self._places_at[lowest])

    def _to_change(self, rank: Rank) -> list[int]:
        return self._places_at.setdefault(rank, [])

    def check_integrity(self, ranks: dict[str, Rank | None]) -> None:
        """Raises AssertionError where these are not the ranks of all, in their order."""
        assert list(self._places) == list(ranks) == [self._names[place] for place in sorted(self._names)]
        assert {name: rank for name, rank in self._ranks.items() if rank} == {n: r for n, r in ranks.items() if r}
        for rank, places in self._places_at.items():
            assert places and places == [self._places[name] for name, each in ranks.items() if each == rank]
        assert self._places_at.keys() == {rank for rank in ranks.values() if rank is not None}


class Reading(Ranks):
    """Ranks as they may come to be: moves here change nothing there, where nothing may change meanwhile."""

    def __init__(self, ranks: Ranks) -> None:
        self._places, self._names = ranks._places, ranks._names
        self._ranks = ChainMap({}, ranks._ranks)
        self._places_at = dict(ranks._places_at)
        self._own: dict[Rank, list[int]] = {}

    def _to_change(self, rank: Rank) -> list[int]:
        places = self._places_at.get(rank, [])
        if self._own.get(rank) is not places:
            places = self._places_at[rank] = self._own[rank] = list(places)
        return places
