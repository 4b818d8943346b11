"""A rate limit: so many a minute, refilled evenly. No clock in it."""

from __future__ import annotations


class TokenBucket:
    """Full at first. Its level may fall below 0 where more is taken than was asked for; such a debt is refilled first,
    so over time no more than the rate goes out. Times are monotonic seconds and never go back."""

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.capacity = float(per_minute)
        self._level = self.capacity
        self._at_s = now_s

    def level(self, now_s: float) -> float:
        """What is in it."""
        self._level = min(self.capacity, self._level + (now_s - self._at_s) * self.capacity / 60.0)
        self._at_s = now_s
        return self._level

    def wait_s(self, amount: float, now_s: float) -> float:
        """Until so much is in it; 0: now. More than it can ever hold waits until it is full."""
        missing = min(amount, self.capacity) - self.level(now_s)
        return max(0.0, missing * 60.0 / self.capacity)

    def full_in_s(self, now_s: float) -> float:
        return self.wait_s(self.capacity, now_s)

    def take(self, amount: float) -> None:
        """After ``wait_s`` said 0; a negative amount is given back, and what does not fit is gone."""
        self._level = min(self.capacity, self._level - amount)
