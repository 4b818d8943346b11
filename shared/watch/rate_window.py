"""How fast a total grows."""

from __future__ import annotations

from collections import deque


class RateWindow:
    """Over the last ``span_s`` seconds. Times are the caller's and never run backwards."""

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

    def per_s(self) -> float | None:
        """None until it was seen at two times."""
        if not self._seen:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None
