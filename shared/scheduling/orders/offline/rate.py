"""Offline requests at a fixed rate: how HyGen* bounds the interference of offline work (HyGen section 5.1)."""

import math
from collections.abc import Iterable, Iterator
from itertools import islice

from shared.scheduling.request import Request


class OfflineRate:
    """Lets one more request enter every ``1 / qps`` seconds, the first at once; those that could not enter when it
    was their time may enter later. An infinite rate holds nobody back. Raises ValueError for a rate of 0 or less."""

    def __init__(self, qps: float = math.inf) -> None:
        if not qps > 0:
            raise ValueError(f"a rate of {qps:g} requests/s lets nobody enter; it must be above 0")
        self.qps = qps
        self._start_s: float | None = None
        self._num_entered = 0
        self._not_before_s = -math.inf  # the first, once somebody waits again

    def open(self, queue: Iterable[Request], now_s: float) -> Iterator[Request]:
        """As much of the queue as may enter by now."""
        if math.isinf(self.qps):
            return iter(queue)
        if self._start_s is None:
            self._start_s = max(now_s, self._not_before_s)
        return islice(queue, max(0, self._num_released(self._start_s, now_s) - self._num_entered))

    def enter(self, num_requests: int) -> None:
        """So many of those let through have entered."""
        self._num_entered += num_requests

    def rest(self) -> None:
        """Nobody waits: time that passes now gives no right to enter later. Whoever comes next enters a period after
        the last: else those that come one by one would enter as they come."""
        if self._start_s is not None:
            self._not_before_s = self._due_s(self._start_s, self._num_entered)
        self._start_s = None
        self._num_entered = 0

    def next_s(self, now_s: float) -> float | None:
        """When the next request may enter; None where one may already."""
        next_s = self._not_before_s
        if self._start_s is not None:
            next_s = self._due_s(self._start_s, self._num_entered)
        return next_s if next_s > now_s else None

    def _due_s(self, start_s: float, number: int) -> float:
        """When the request of that number may enter, the first being 0."""
        return start_s + number / self.qps

    def _num_released(self, start_s: float, now_s: float) -> int:
        """Those that are due by now, which a product alone may be one off by rounding."""
        number = max(0, math.floor((now_s - start_s) * self.qps) - 1)
        while self._due_s(start_s, number) <= now_s:
            number += 1
        return number
