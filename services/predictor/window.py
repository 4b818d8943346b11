"""Which samples a fit sees: a bounded window that thousands of equal decode steps cannot take over."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from shared.protocol.messages import BatchShape

STRATUM_SHARE = 64  # one stratum holds at most this part of the window
MIN_STRATUM = 8


class Observation(NamedTuple):
    """One timed batch."""

    shape: BatchShape
    latency_ms: float


Stratum = tuple[int, int, int, int]


def stratum(shape: BatchShape) -> Stratum:
    """Shapes whose four sums each lie between the same powers of two are alike."""
    return (
        shape.prefill_tokens.bit_length(),
        shape.prefill_requests.bit_length(),
        shape.decode_kv_tokens.bit_length(),
        shape.decode_requests.bit_length(),
    )


class SampleWindow:
    """At most ``capacity`` observations. Each stratum keeps its newest ones up to its share; a full window gives up
    the oldest of its largest stratum, so that rare shapes stay until newer ones of their own kind replace them."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._stratum_limit = max(MIN_STRATUM, capacity // STRATUM_SHARE)
        self._strata: dict[Stratum, deque[Observation]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, observation: Observation) -> bool:
        """False where it says nothing: an empty batch, or a latency that is not a positive number."""
        shape, latency_ms = observation
        is_empty = shape.prefill_requests == 0 and shape.decode_requests == 0
        if is_empty or not (math.isfinite(latency_ms) and latency_ms > 0):
            return False
        members = self._strata.setdefault(stratum(shape), deque())
        members.append(observation)
        self._size += 1
        if len(members) > self._stratum_limit:
            self._drop_oldest(members)
        elif self._size > self._capacity:
            self._drop_oldest(max(self._strata.values(), key=len))
        return True

    def observations(self) -> list[Observation]:
        """Stratum by stratum, oldest first in each."""
        return [observation for members in self._strata.values() for observation in members]

    def check_integrity(self) -> None:
        """Raises AssertionError where the bounds or the sums are broken."""
        assert self._size == sum(map(len, self._strata.values())) <= self._capacity
        for key, members in self._strata.items():
            assert len(members) <= self._stratum_limit
            assert all(stratum(observation.shape) == key for observation in members)

    def _drop_oldest(self, members: deque[Observation]) -> None:
        members.popleft()
        self._size -= 1
