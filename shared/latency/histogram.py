"""Latencies counted in logarithmic buckets, small enough to send and to add up."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.bounds import Count, Finite

BUCKET_WIDTH = 1.02  # the upper bound of a bucket over the lower
MAX_BUCKET = 2000  # 1.6e17 ms
SHORTEST_MS = 1e-3  # what is shorter counts as this
_PER_LOG = 1.0 / math.log(BUCKET_WIDTH)


class LatencyHistogram(msgspec.Struct, array_like=True):
    """Milliseconds. Buckets are 2% wide and count as their geometric middle, so that quantiles are right to 1%; the
    mean is exact. ``buckets`` maps i to the number of samples from 1.02^i to 1.02^(i + 1) ms."""

    num_samples: Count = 0
    total_ms: Finite = 0.0
    buckets: dict[Annotated[int, Meta(ge=-MAX_BUCKET, le=MAX_BUCKET)], Count] = {}

    def __post_init__(self) -> None:
        if sum(self.buckets.values()) != self.num_samples:
            raise ValueError(f"the buckets do not have {self.num_samples} samples")

    @property
    def is_empty(self) -> bool:
        """No samples."""
        return not self.num_samples

    def add(self, latency_ms: float) -> None:
        """Count one sample."""
        bucket = math.floor(math.log(latency_ms if latency_ms > SHORTEST_MS else SHORTEST_MS) * _PER_LOG)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.num_samples += 1
        self.total_ms += latency_ms

    def merge(self, other: LatencyHistogram) -> None:
        """Count the other's samples as well."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.num_samples += other.num_samples
        self.total_ms += other.total_ms

    def mean_ms(self) -> float | None:
        """None without samples."""
        return self.total_ms / self.num_samples if self.num_samples else None

    def quantile_ms(self, share: float) -> float | None:
        """The ``share`` quantile (0 to 1), linear between the two nearest samples as numpy's; None without samples."""
        if not self.num_samples:
            return None
        position = (self.num_samples - 1) * share
        rank = math.floor(position)
        below, above = self._at_rank(rank), self._at_rank(min(rank + 1, self.num_samples - 1))
        return below + (above - below) * (position - rank)

    def num_above(self, bound_ms: float) -> int:
        """How many samples are longer than the bound, to a bucket."""
        return sum(count for bucket, count in self.buckets.items() if _middle_ms(bucket) > bound_ms)

    def _at_rank(self, rank: int) -> float:
        """The sample with so many before it; ``rank`` is below ``num_samples``."""
        buckets = sorted(self.buckets)
        seen = list(accumulate(map(self.buckets.__getitem__, buckets)))
        return _middle_ms(buckets[bisect_right(seen, rank)])


def _middle_ms(bucket: int) -> float:
    return math.exp((bucket + 0.5) / _PER_LOG)
