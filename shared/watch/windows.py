"""What was told within the last seconds. Times are the caller's and never run backwards."""

from collections import deque
from collections.abc import Callable
from math import floor
from typing import Generic, TypeVar

from shared.latency.histogram import LatencyHistogram
from shared.protocol.profiling.online import OnlineLatencies

Sum = TypeVar("Sum", LatencyHistogram, OnlineLatencies)


class Rolling(Generic[Sum]):
    """What was told within the last ``span_s`` seconds, kept by the second, so that those who tell do not make it
    larger."""

    def __init__(self, span_s: float, nothing: Callable[[], Sum]) -> None:
        self._span_s = span_s
        self._nothing: Callable[[], Sum] = nothing
        self._seconds: deque[tuple[int, Sum]] = deque()

    def add(self, now_s: float, told: Sum) -> None:
        """A report of now, which may tell of nothing."""
        self._forget(now_s)
        if told.is_empty:
            return
        second = floor(now_s)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, self._nothing()))
        self._seconds[-1][1].merge(told)

    def total(self, now_s: float) -> Sum:
        """All of it together."""
        self._forget(now_s)
        total = self._nothing()
        for _, told in self._seconds:
            total.merge(told)
        return total

    def _forget(self, now_s: float) -> None:
        while self._seconds and self._seconds[0][0] <= now_s - self._span_s:
            self._seconds.popleft()


class RateWindow:
    """How fast a total grows, over the last ``span_s`` seconds."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._seen: deque[tuple[float, float]] = deque()

    def add(self, now_s: float, total: float) -> None:
        """A smaller total than the one before is that of something new: what was seen before is forgotten."""
        if self._seen and total < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now_s, total))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - self._span_s:
            self._seen.popleft()

    def per_s(self, now_s: float | None = None) -> float | None:
        """None until it was seen at two times. ``now_s``: until then it has stayed as it was seen last."""
        if not self._seen or self._seen[-1][0] <= self._seen[0][0]:
            return None
        last_s, last = self._seen[-1]
        until_s = last_s if now_s is None else max(last_s, now_s)
        first_s, first = self._seen[0]
        for at_s, total in self._seen:
            if at_s > until_s - self._span_s:
                break
            first_s, first = at_s, total
        return (last - first) / (until_s - first_s)
