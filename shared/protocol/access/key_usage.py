"""Tokens that API keys have used, by day, as the bus keeps them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from shared.bounds import Change

INSUFFICIENT_QUOTA = "insufficient_quota"  # OpenAI's type and code for who has used up its budget
KEY_CLIENT = "name-"  # what the client id of a key's owner begins with; the key's name follows


class KeyUsage(msgspec.Struct, frozen=True):
    """A value of KEY_USAGE_BUCKET: what one source has counted of one key in one day. It is a total that its source
    alone writes, so that it may be written again and again."""

    num_requests: Change = 0
    input_tokens: Change = 0
    cached_tokens: Change = 0  # of the input
    output_tokens: Change = 0

    def __add__(self, other: KeyUsage) -> KeyUsage:
        return self.plus(other)

    def __sub__(self, other: KeyUsage) -> KeyUsage:
        return self.plus(other, -1)

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def plus(self, other: KeyUsage, times: int = 1) -> KeyUsage:
        """With so many times the other."""
        return KeyUsage(
            self.num_requests + times * other.num_requests,
            self.input_tokens + times * other.input_tokens,
            self.cached_tokens + times * other.cached_tokens,
            self.output_tokens + times * other.output_tokens,
        )


class UsagePlace(NamedTuple):
    """Of what a KeyUsage is. ``source``: a gateway process, or a batch; ``model``: the token of its name, empty where a
    version with one model has counted it."""

    day: str
    name: str
    source: str
    model: str = ""

    @property
    def key(self) -> str:
        """In KEY_USAGE_BUCKET; none of its parts has a dot."""
        return ".".join(part for part in self if part)

    @classmethod
    def of(cls, key: str) -> UsagePlace | None:
        """None for a key of another form."""
        parts = key.split(".")
        return cls(*parts) if len(parts) in (3, 4) else None

    @property
    def is_batch(self) -> bool:
        return self.source.startswith("batch_")


def key_name_of(client_id: str) -> str | None:
    """Whose key it is; None where the client has none."""
    return client_id.removeprefix(KEY_CLIENT) if client_id.startswith(KEY_CLIENT) else None


def day_of(unix_s: float) -> str:
    """As 2026-11-30, in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).date().isoformat()


def month_of(day: str) -> str:
    """As 2026-11."""
    return day[:7]


def left_of_day_s(unix_s: float) -> float:
    """Until the next day begins, in UTC."""
    now = datetime.fromtimestamp(unix_s, UTC)
    return (_midnight(now) + timedelta(days=1) - now).total_seconds()


def left_of_month_s(unix_s: float) -> float:
    """Until the next month begins, in UTC."""
    now = datetime.fromtimestamp(unix_s, UTC)
    in_next = _midnight(now).replace(day=28) + timedelta(days=4)
    return (in_next.replace(day=1) - now).total_seconds()


def _midnight(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)
