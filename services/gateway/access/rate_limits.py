"""What one API key may ask for in a minute: requests, and tokens of prompts and answers together."""

from __future__ import annotations

import math

from services.gateway.http.errors import Refusal


class TokenBucket:
    """A rate limit: so many a minute, refilled evenly. No clock in it.

    Full at first. Its level may fall below 0 where more is taken than was asked for; such a debt is refilled first,
    so over time no more than the rate goes out. Times are monotonic seconds and never go back.
    """

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


class Reservation:
    """The tokens that an admitted request may use at most."""

    def __init__(self, bucket: TokenBucket | None, num_tokens: int, num_free: int = 0) -> None:
        """``num_free``: tokens that it uses and that somebody else pays for."""
        self._bucket = bucket
        self._num_tokens = num_tokens
        self._num_free = num_free

    def settle(self, num_used: int) -> None:
        """Once, at its end: what it did not use is there again, what it used beyond the reservation is owed."""
        if self._bucket is not None:
            self._bucket.take(max(0, num_used - self._num_free) - self._num_tokens)

    def shared(self, num_choices: int, num_prompt_tokens: int) -> list[Reservation]:
        """In its place, one for each choice over the same prompt, which the first one pays for."""
        each, rest = divmod(self._num_tokens, num_choices)
        others = [Reservation(self._bucket, each, num_prompt_tokens) for _ in range(num_choices - 1)]
        return [Reservation(self._bucket, each + rest), *others]


UNLIMITED = Reservation(None, 0)


class RateLimits:
    """Of one key, at one gateway. A None limit is none."""

    def __init__(self, requests_per_minute: int | None, tokens_per_minute: int | None, now_s: float) -> None:
        self._requests = None if requests_per_minute is None else TokenBucket(requests_per_minute, now_s)
        self._tokens = None if tokens_per_minute is None else TokenBucket(tokens_per_minute, now_s)

    def take_request(self, now_s: float) -> None:
        """One more request; refused ones are not counted. Raises Refusal (429)."""
        if self._requests is None:
            return
        if wait_s := self._requests.wait_s(1, now_s):
            raise self._refusal("requests", self._requests, 1, wait_s, now_s)
        self._requests.take(1)

    def reserve_tokens(self, num_tokens: int, now_s: float) -> Reservation:
        """Prompt and the longest answer. One of more than a minute's worth needs the full limit, and what it uses
        beyond is owed. Raises Refusal (429)."""
        if self._tokens is None:
            return UNLIMITED
        reserved = min(num_tokens, int(self._tokens.capacity))
        if wait_s := self._tokens.wait_s(reserved, now_s):
            raise self._refusal("tokens", self._tokens, num_tokens, wait_s, now_s)
        self._tokens.take(reserved)
        return Reservation(self._tokens, reserved)

    def headers(self, now_s: float) -> dict[str, str]:
        """OpenAI's ``x-ratelimit-*``, of the limits that there are."""
        found = {}
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                found[f"x-ratelimit-limit-{name}"] = f"{bucket.capacity:.0f}"
                found[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.level(now_s))))
                found[f"x-ratelimit-reset-{name}"] = duration(bucket.wait_s(bucket.capacity, now_s))
        return found

    def _refusal(self, what: str, bucket: TokenBucket, asked: int, wait_s: float, now_s: float) -> Refusal:
        left = max(0, math.floor(bucket.level(now_s)))
        return Refusal(
            f"rate_limit_{what}",
            f"rate limit of {what} reached: {bucket.capacity:.0f} a minute, {left} left, {asked} asked for; "
            f"try again in {duration(wait_s)}",
            wait_s,
            429,
            "rate_limit_exceeded",
            what,
            self.headers(now_s),
        )


def duration(seconds: float) -> str:
    """As OpenAI writes it: "120ms", "7s", "1m30s". Rounded up."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
