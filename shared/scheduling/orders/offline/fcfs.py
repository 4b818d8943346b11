"""The order of arrival."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from shared.scheduling.orders.offline.freshness import FreshnessTree
from shared.scheduling.orders.offline.order import Turn
from shared.scheduling.orders.offline.view import NOBODY, OfflineView
from shared.scheduling.request import Request


class FcfsOrder:
    """First come, first served."""

    def __init__(self) -> None:
        self._arrivals = itertools.count()
        self._known: dict[str, _Arrival] = {}
        self._waiting = FreshnessTree()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: Request, prompt: bytes, group: str = "") -> None:
        if request.request_id in self._known:
            raise ValueError(f"request {request.request_id} is here already")
        arrival = self._known[request.request_id] = _Arrival(next(self._arrivals), request, group)
        self._waiting.insert(*arrival)

    def take(self, request_id: str, reader: str | None = None) -> None:
        arrival = self._known[request_id]
        self._waiting.remove(arrival.sequence, arrival.group)

    def leave(self, reader: str) -> None:
        """Readers are all alike to it."""

    def give_back(self, request_id: str) -> None:
        self._waiting.insert(*self._known[request_id])

    def remove(self, request_id: str) -> None:
        arrival = self._known.pop(request_id)
        if self._waiting.has(arrival.sequence, arrival.group):
            self._waiting.remove(arrival.sequence, arrival.group)

    def in_order(self, view: OfflineView = NOBODY, turn: Turn | None = None) -> Iterator[Request]:
        return self._waiting.in_order(turn)

    def check_integrity(self) -> None:
        by_arrival = sorted(self._known.values())
        waiting = [each.request for each in by_arrival if self._waiting.has(each.sequence, each.group)]
        assert list(self._waiting.in_order()) == waiting


class _Arrival(NamedTuple):
    """Numbers differ, so that requests are never compared."""

    sequence: int
    request: Request
    group: str
