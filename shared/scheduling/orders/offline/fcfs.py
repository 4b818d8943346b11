"""The order of arrival: T_f of HyGen Alg. 4, waiting offline requests by how stale they are."""

import heapq
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from sortedcontainers import SortedDict

from shared.scheduling.orders.offline.order import LearnsNothing, Turn
from shared.scheduling.orders.offline.view import NOBODY, OfflineView
from shared.scheduling.request import Request


class FcfsOrder(LearnsNothing):
    """First come, first served. The number of a request's arrival is kept for good, so that one that ran and comes back
    is as stale as before."""

    def __init__(self) -> None:
        self.num_waiting = 0
        self._arrivals = itertools.count()
        self._known: dict[str, _Arrival] = {}
        self._waiting: dict[str, SortedDict[int, Request]] = {}  # by arrival, of the groups that have anything

    def add(self, request: Request, prompt: bytes, group: str = "") -> None:
        if request.request_id in self._known:
            raise ValueError(f"request {request.request_id} is here already")
        self._known[request.request_id] = _Arrival(next(self._arrivals), request, group)
        self.give_back(request.request_id)

    def take(self, request_id: str, reader: str | None = None) -> None:
        sequence, _, group = self._known[request_id]
        waiting = self._waiting[group]
        del waiting[sequence]
        self.num_waiting -= 1
        if not waiting:
            del self._waiting[group]

    def leave(self, reader: str) -> None:
        """Readers are all alike to it."""

    def give_back(self, request_id: str) -> None:
        sequence, request, group = self._known[request_id]
        if group not in self._waiting:
            self._waiting[group] = SortedDict()
        self._waiting[group][sequence] = request
        self.num_waiting += 1

    def remove(self, request_id: str) -> None:
        if self._waits(request_id):
            self.take(request_id)
        del self._known[request_id]

    def in_order(self, view: OfflineView = NOBODY, turn: Turn | None = None) -> Iterator[Request]:
        if turn is None:
            turn = Turn(self._waiting)
        parts = [self._part(group, turn) for group in turn.groups if group in self._waiting]
        for _, request, group in parts[0] if len(parts) == 1 else heapq.merge(*parts):
            if group in turn.groups and request.request_id not in turn.passed:
                yield request

    def _part(self, group: str, turn: Turn) -> Iterator[tuple[int, Request, str]]:
        """As long as it is the group's turn."""
        for sequence, request in self._waiting[group].items():
            if group not in turn.groups:
                return
            yield sequence, request, group

    def _waits(self, request_id: str) -> bool:
        sequence, _, group = self._known[request_id]
        return sequence in self._waiting.get(group, ())

    def check_integrity(self) -> None:
        by_arrival = sorted(self._known.values())
        waiting = [each.request for each in by_arrival if self._waits(each.request.request_id)]
        assert list(self.in_order()) == waiting and self.num_waiting == len(waiting)
        assert all(self._waiting.values())


class _Arrival(NamedTuple):
    """Numbers differ, so that requests are never compared."""

    sequence: int
    request: Request
    group: str
