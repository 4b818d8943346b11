"""What one API key may ask for in a minute: requests, and tokens of prompts and answers together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.gateway.access.spending import Account
from services.gateway.http.errors import Refusal
from shared.protocol.access.key_usage import KeyUsage


class TokenBucket:
    """A rate limit: so many a minute, refilled evenly; full at first. Its level may fall below 0 where more is taken
    than was asked for; such a debt is refilled first, so over time no more than the rate goes out. Times are monotonic
    seconds and never go back."""

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

    def take(self, amount: float) -> None:
        """After ``wait_s`` said 0; a negative amount is given back, and what does not fit is gone."""
        self._level = min(self.capacity, self._level - amount)


@dataclass(slots=True)
class Reservation:
    """The tokens that an admitted request may use at most, until all of its choices have ended: what it did not use is
    there again, what it used beyond is owed. Where one of them failed, all of it has failed and costs nothing."""

    bucket: TokenBucket | None
    num_tokens: int
    account: Account | None = None  # of its key
    num_running: int = 0  # choices that have not ended
    has_failed: bool = False
    used: KeyUsage = field(default_factory=lambda: KeyUsage(num_requests=1))

    def shares(self, num_free: Sequence[int]) -> list[Share]:
        """One for each choice. ``num_free``: of its tokens, those of a prompt that another one pays for, the first over
        the same prompt."""
        self.num_running = len(num_free)
        return [Share(self, free) for free in num_free]

    def end(self, used: KeyUsage | None) -> None:
        """A choice has ended; None where it failed."""
        self.num_running -= 1
        if used is None:
            self.has_failed = True
        else:
            self.used += used
        if self.num_running == 0:
            self._settle(KeyUsage() if self.has_failed else self.used)

    def _settle(self, charged: KeyUsage) -> None:
        if self.bucket is not None:
            self.bucket.take(charged.total_tokens - self.num_tokens)
        if self.account is not None and charged.total_tokens:
            self.account.charge(charged)


@dataclass(frozen=True, slots=True)
class Share:
    """What one choice uses of a request's reservation. Ended once: with ``settle`` or ``fail``."""

    reservation: Reservation | None  # None: nobody counts it
    num_free: int = 0  # tokens of its prompt, which another choice pays for

    def settle(self, num_prompt: int, num_output: int = 0, num_cached: int = 0) -> None:
        """So many tokens of its prompt, of which so many were in the prefix cache, and so many of its answer."""
        if self.reservation is not None:
            cached = 0 if self.num_free else num_cached
            self.reservation.end(KeyUsage(0, num_prompt - self.num_free, cached, num_output))

    def fail(self) -> None:
        """Whatever it has used costs nothing."""
        if self.reservation is not None:
            self.reservation.end(None)


UNLIMITED = Share(None)


class RateLimits:
    """Of one key, at one gateway. A None limit is none."""

    def __init__(self, requests_per_minute: int | None, tokens_per_minute: int | None, now_s: float) -> None:
        limits = {"requests": requests_per_minute, "tokens": tokens_per_minute}
        self._buckets = {what: TokenBucket(limit, now_s) for what, limit in limits.items() if limit is not None}

    def take_request(self, now_s: float) -> None:
        """One more request; refused ones are not counted. Raises Refusal (429)."""
        self._take("requests", 1, now_s)

    def reserve_tokens(self, num_tokens: int, now_s: float, account: Account | None = None) -> Reservation:
        """Prompt and the longest answer; what it uses beyond a minute's worth is owed. ``account``: that what it uses
        is charged to. Raises Refusal (429)."""
        return Reservation(self._buckets.get("tokens"), self._take("tokens", num_tokens, now_s), account=account)

    def headers(self, now_s: float) -> dict[str, str]:
        """OpenAI's ``x-ratelimit-*``, of the limits that there are."""
        found = {}
        for name, bucket in self._buckets.items():
            found[f"x-ratelimit-limit-{name}"] = f"{bucket.capacity:.0f}"
            found[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.level(now_s))))
            found[f"x-ratelimit-reset-{name}"] = duration(bucket.wait_s(bucket.capacity, now_s))
        return found

    def _take(self, what: str, asked: int, now_s: float) -> int:
        """So many, or the full limit where that is less; 0 where there is none. Raises Refusal (429)."""
        bucket = self._buckets.get(what)
        if bucket is None:
            return 0
        taken = min(asked, int(bucket.capacity))
        if wait_s := bucket.wait_s(taken, now_s):
            left, again = max(0, math.floor(bucket.level(now_s))), duration(wait_s)
            limit = f"rate limit of {what} reached: {bucket.capacity:.0f} a minute"
            message = f"{limit}, {left} left, {asked} asked for; try again in {again}"
            headers = self.headers(now_s)
            raise Refusal(f"rate_limit_{what}", message, wait_s, 429, "rate_limit_exceeded", what, headers)
        bucket.take(taken)
        return taken


def duration(seconds: float) -> str:
    """As OpenAI writes it: "120ms", "7s", "1m30s". Rounded up."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
