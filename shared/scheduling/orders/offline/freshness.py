"""T_f of HyGen Alg. 4: waiting offline requests by how stale they are."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from shared.scheduling.request import Request


class FreshnessTree:
    """The most stale first. ``sequence``: the number of a request's arrival, kept for good, so that one that was
    removed to run and comes back is as stale as before."""

    def __init__(self) -> None:
        self._by_sequence: SortedDict[int, Request] = SortedDict()

    def __len__(self) -> int:
        return len(self._by_sequence)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._by_sequence

    def insert(self, sequence: int, request: Request) -> None:
        """Raises ValueError for a sequence that is here already."""
        if sequence in self._by_sequence:
            raise ValueError(f"sequence {sequence} of request {request.request_id} is here already")
        self._by_sequence[sequence] = request

    def remove(self, sequence: int) -> None:
        """Raises KeyError for an unknown sequence."""
        del self._by_sequence[sequence]

    def in_order(self) -> Iterator[Request]:
        """Read lazily; the tree must not change meanwhile."""
        return iter(self._by_sequence.values())
