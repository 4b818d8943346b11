"""T_f of HyGen Alg. 4: waiting offline requests by how stale they are."""

import heapq
from collections.abc import Iterator

from sortedcontainers import SortedDict

from shared.scheduling.orders.offline.order import Turn
from shared.scheduling.request import Request


class FreshnessTree:
    """The most stale first, of all groups or of some. ``sequence``: the number of a request's arrival, kept for good,
    so that one that was removed to run and comes back is as stale as before."""

    def __init__(self) -> None:
        self._groups: dict[str, SortedDict[int, Request]] = {}  # those that have anything
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def has(self, sequence: int, group: str = "") -> bool:
        return sequence in self._groups.get(group, ())

    def insert(self, sequence: int, request: Request, group: str = "") -> None:
        """Raises ValueError for a sequence that the group has already."""
        if self.has(sequence, group):
            raise ValueError(f"sequence {sequence} of request {request.request_id} is here already")
        if group not in self._groups:
            self._groups[group] = SortedDict()
        self._groups[group][sequence] = request
        self._num_waiting += 1

    def remove(self, sequence: int, group: str = "") -> None:
        """Raises KeyError for an unknown sequence."""
        by_sequence = self._groups[group]
        del by_sequence[sequence]
        self._num_waiting -= 1
        if not by_sequence:
            del self._groups[group]

    def in_order(self, turn: Turn | None = None) -> Iterator[Request]:
        """Read lazily; the tree must not change meanwhile."""
        if turn is None:
            turn = Turn(self._groups)
        parts = [self._part(group, turn) for group in turn.groups if group in self._groups]
        for _, group, request in parts[0] if len(parts) == 1 else heapq.merge(*parts):
            if group in turn.groups and request.request_id not in turn.passed:
                yield request

    def _part(self, group: str, turn: Turn) -> Iterator[tuple[int, str, Request]]:
        """As long as it is the group's turn."""
        for sequence, request in self._groups[group].items():
            if group not in turn.groups:
                return
            yield sequence, group, request
