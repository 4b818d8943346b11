"""How long to wait before a crashed process starts again."""

from __future__ import annotations

FIRST_DELAY_S = 0.2
MAX_DELAY_S = 10.0
HEALTHY_AFTER_S = 30.0


class Backoff:
    """Delays that double with each failure, and begin anew after a run that was long enough to count as healthy."""

    def __init__(
        self, first_s: float = FIRST_DELAY_S, max_s: float = MAX_DELAY_S, healthy_after_s: float = HEALTHY_AFTER_S
    ) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._healthy_after_s = healthy_after_s
        self.failures = 0  # in a row

    def next_delay_s(self, uptime_s: float) -> float:
        """Count one failure after ``uptime_s`` of running; the delay before the next start."""
        if uptime_s >= self._healthy_after_s:
            self.failures = 0
        self.failures += 1
        return min(self._max_s, self._first_s * 2.0 ** min(self.failures - 1, 32))
