"""By shared prefixes, and some by age so that nobody starves: HyGen Alg. 4."""

import itertools
from collections import deque
from collections.abc import Iterator, Mapping

from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.orders.offline.order import OfflineOrder, Turn
from shared.scheduling.orders.offline.psm import PsmOrder
from shared.scheduling.orders.offline.view import NOBODY, OfflineView
from shared.scheduling.request import Request


class PsmFairOrder:
    """HyGen Alg. 4: each next request is the trie's with probability ``utility_ratio``, else the most stale one. A
    ratio of 1 is psm; 0 is fcfs.

    A draw (line 23) stands until the request that it chose is taken. Drawing anew for each plan would let a stale
    request that does not fit right now be passed over by smaller ones again and again.
    """

    def __init__(
        self,
        block_size: int,
        utility_ratio: float,
        numbers: Iterator[float],
        by_prefix: OfflineOrder | None = None,
        follows_age: bool = False,
    ) -> None:
        """``numbers``: endless, uniform in [0, 1); ``by_prefix``: an empty order by shared prefixes; psm unless given;
        ``follows_age``: it is told by whom requests are taken that were drawn by their age. Raises ValueError for a
        ratio outside [0, 1]."""
        if not 0.0 <= utility_ratio <= 1.0:
            raise ValueError(f"utility_ratio must be from 0 to 1, not {utility_ratio}")
        self._by_prefix = PsmOrder(block_size) if by_prefix is None else by_prefix
        self._follows_age = follows_age
        self._by_age = FcfsOrder()
        self._utility_ratio = utility_ratio
        self._numbers = numbers
        self._drawn: deque[float] = deque()  # for the next requests to be taken

    @property
    def num_waiting(self) -> int:
        return self._by_age.num_waiting

    def add(self, request: Request, prompt: bytes, group: str = "") -> None:
        self._by_age.add(request, prompt, group)
        self._by_prefix.add(request, prompt, group)

    def take(self, request_id: str, reader: str | None = None) -> None:
        """One that was drawn by its age does not lead psm's reader away from the prompts that it is at."""
        was_stale = bool(self._drawn) and self._drawn.popleft() >= self._utility_ratio
        self._by_age.take(request_id)
        self._by_prefix.take(request_id, None if was_stale and not self._follows_age else reader)

    def leave(self, reader: str) -> None:
        self._by_prefix.leave(reader)

    def give_back(self, request_id: str) -> None:
        self._by_age.give_back(request_id)
        self._by_prefix.give_back(request_id)

    def remove(self, request_id: str) -> None:
        self._by_age.remove(request_id)
        self._by_prefix.remove(request_id)

    def learn(self, request_id: str, num_output_tokens: int) -> None:
        self._by_prefix.learn(request_id, num_output_tokens)

    def remember(self) -> bytes:
        return self._by_prefix.remember()

    def recall(self, data: bytes) -> None:
        self._by_prefix.recall(data)

    def details(self) -> Mapping[str, float]:
        return self._by_prefix.details()

    def in_order(self, view: OfflineView = NOBODY, turn: Turn | None = None) -> Iterator[Request]:
        by_prefix, by_age = self._by_prefix.in_order(view, turn), self._by_age.in_order(view, turn)
        shown: set[str] = set()  # membership only, never iterated
        for number in self._draws(start=len(turn.passed) if turn is not None else 0):
            source = by_prefix if number < self._utility_ratio else by_age
            request = next((each for each in source if each.request_id not in shown), None)
            if request is None:
                return
            shown.add(request.request_id)
            yield request

    def _draws(self, start: int) -> Iterator[float]:
        for index in itertools.count(start):
            while index >= len(self._drawn):
                self._drawn.append(next(self._numbers))
            yield self._drawn[index]

    def check_integrity(self) -> None:
        self._by_age.check_integrity()
        self._by_prefix.check_integrity()
        by_age = {request.request_id for request in self._by_age.in_order()}
        assert by_age == {request.request_id for request in self._by_prefix.in_order()}
