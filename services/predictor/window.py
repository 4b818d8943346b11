"""Which samples a fit sees: a bounded window that thousands of equal decode steps cannot take over. What they say of
themselves: whether there are enough, and how noisy they are."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from shared.latency.features import BatchFeatures

STRATUM_SHARE = 64  # one stratum holds at most this part of the window
MIN_STRATUM = 8
LEAST_MS, MOST_MS = 1e-6, 1e9  # a nanosecond, and eleven days
STALE_WEIGHT = 0.1  # enough to settle what no newer sample contradicts


class Observation(NamedTuple):
    """One timed batch, and how much it counts."""

    shape: BatchFeatures
    latency_ms: float
    weight: float = 1.0


Stratum = tuple[int, int, int, int, int]


def stratum(shape: BatchFeatures) -> Stratum:
    """Shapes whose sums each lie between the same powers of two are alike, those of pairs, which grow with the square
    of a length, between the same powers of four."""
    return (
        shape.prefill_tokens.bit_length(),
        shape.prefill_requests.bit_length(),
        shape.decode_kv_tokens.bit_length(),
        shape.decode_requests.bit_length(),
        shape.prefill_pairs.bit_length() // 2,
    )


def covers_both_kinds(observations: Iterable[Observation], num_shapes: int) -> bool:
    """Prefills and decodes, in at least ``num_shapes`` distinct shapes."""
    shapes = {observation.shape.sums: observation.shape for observation in observations}
    has_prefill = any(shape.prefill_requests for shape in shapes.values())
    has_decode = any(shape.decode_requests for shape in shapes.values())
    return len(shapes) >= num_shapes and has_prefill and has_decode


def noise_floor(observations: Iterable[Observation]) -> float | None:
    """The mean absolute deviation of equal batches from their true mean, as a share of it; None where no shape was
    repeated.

    It is estimated from differences of one repetition to the next, of which the mean is the square root of 2 times
    that deviation for normal noise: unlike the deviation from a mean of a few repetitions it is not too small, and a
    machine that has become slower in between does not count as noise.
    """
    last: dict[tuple[int, ...], float] = {}
    differences: list[float] = []
    for shape, latency_ms, _ in observations:
        before_ms = last.get(shape.sums)
        if before_ms is not None:
            differences.append(abs(latency_ms - before_ms) / ((latency_ms + before_ms) / 2))
        last[shape.sums] = latency_ms
    return sum(differences) / len(differences) / math.sqrt(2.0) if differences else None


class SampleWindow:
    """At most ``capacity`` observations. Each stratum keeps its newest ones up to its share; a full window gives up
    the oldest of its largest stratum, so that rare shapes stay until newer ones of their own kind replace them. What
    a sliding window of this size would have lost by now is stale, and counts less: the machine may have changed."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._stratum_limit = max(MIN_STRATUM, capacity // STRATUM_SHARE)
        self._strata: dict[Stratum, deque[_Numbered]] = {}
        self._size = 0
        self.num_added = 0  # ever: the number of the next one

    def __len__(self) -> int:
        return self._size

    def add(self, shape: BatchFeatures, latency_ms: float, is_live: bool = True) -> bool:
        """False where it says nothing: an empty batch, or a latency that no step has. ``is_live``: of a step that ran
        for requests; a sweep's batches are measured once, and told again long after."""
        is_empty = shape.prefill_requests == 0 and shape.decode_requests == 0
        if is_empty or not LEAST_MS <= latency_ms <= MOST_MS:
            return False
        members = self._strata.setdefault(stratum(shape), deque())
        members.append(_Numbered(self.num_added, shape, latency_ms, is_live))
        self.num_added += 1
        self._size += 1
        if len(members) > self._stratum_limit:
            self._drop_oldest(members)
        elif self._size > self.capacity:
            self._drop_oldest(max(self._strata.values(), key=len))
        return True

    def rescale(self, before: int, factor: float) -> None:
        """Multiply the latencies of all samples of lower numbers than ``before``: the machine has become so many times
        slower since, and of shapes that have not come again nothing better is known."""
        for members in self._strata.values():
            for index, member in enumerate(members):
                if member.number < before:
                    members[index] = member._replace(latency_ms=member.latency_ms * factor)

    def clear(self) -> None:
        """Forget all; numbers go on."""
        self._strata.clear()
        self._size = 0

    def observations(self) -> list[Observation]:
        """Stratum by stratum, oldest first in each."""
        stale_before = self.num_added - self.capacity
        return [
            Observation(shape, latency_ms, STALE_WEIGHT if number < stale_before else 1.0)
            for members in self._strata.values()
            for number, shape, latency_ms, _ in members
        ]

    def recent(self, count: int) -> list[Observation]:
        """The newest ``count`` live ones of those kept, newest first."""
        live = (member for members in self._strata.values() for member in members if member.is_live)
        newest = heapq.nlargest(count, live, key=lambda member: member.number)
        return [Observation(member.shape, member.latency_ms) for member in newest]

    def check_integrity(self) -> None:
        """Raises AssertionError where the bounds or the sums are broken."""
        assert self._size == sum(map(len, self._strata.values())) <= self.capacity
        for key, members in self._strata.items():
            assert len(members) <= self._stratum_limit
            assert all(stratum(member.shape) == key for member in members)

    def _drop_oldest(self, members: deque[_Numbered]) -> None:
        members.popleft()
        self._size -= 1


class _Numbered(NamedTuple):
    number: int
    shape: BatchFeatures
    latency_ms: float
    is_live: bool
