"""Latencies that online users got, added up over time and gateways."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import floor
from typing import Protocol

from shared.latency.histogram import LatencyHistogram
from shared.protocol.online import OnlineServed

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}  # of the statistics of an SLO; the other is the mean


class Figure(Protocol):
    """What an SLO is about."""

    @property
    def metric(self) -> str:
        """A field of OnlineLatencies."""

    @property
    def statistic(self) -> str:
        """One of QUANTILES, or the mean."""


@dataclass(slots=True)
class OnlineLatencies:
    """Milliseconds of each metric, named as in a replay's report."""

    ttft_ms: LatencyHistogram = field(default_factory=LatencyHistogram)
    tbt_ms: LatencyHistogram = field(default_factory=LatencyHistogram)
    tpot_ms: LatencyHistogram = field(default_factory=LatencyHistogram)
    normalized_latency_ms: LatencyHistogram = field(default_factory=LatencyHistogram)

    def merge(self, served: OnlineServed | OnlineLatencies) -> None:
        """Count a gateway's report, or what others counted."""
        self.ttft_ms.merge(served.ttft_ms)
        self.tbt_ms.merge(served.tbt_ms)
        self.tpot_ms.merge(served.tpot_ms)
        self.normalized_latency_ms.merge(served.normalized_latency_ms)

    def histogram(self, figure: Figure) -> LatencyHistogram:
        """Of the figure's metric."""
        histogram: LatencyHistogram = getattr(self, figure.metric)
        return histogram

    def value_ms(self, figure: Figure) -> float | None:
        """None without samples."""
        histogram, quantile = self.histogram(figure), QUANTILES.get(figure.statistic)
        return histogram.mean_ms() if quantile is None else histogram.quantile_ms(quantile)


class RollingLatencies:
    """What was told within the last ``span_s`` seconds, kept by the second, so that neither gateways nor executors make
    it larger; the time is the caller's, and never runs backwards."""

    def __init__(self, span_s: float = 60.0) -> None:
        self._span_s = span_s
        self._seconds: deque[tuple[int, OnlineLatencies]] = deque()

    def add(self, now_s: float, served: OnlineServed) -> None:
        """A gateway's report of now."""
        second = floor(now_s)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, OnlineLatencies()))
        self._seconds[-1][1].merge(served)
        self._forget(now_s)

    def latencies(self, now_s: float) -> OnlineLatencies:
        """All of it together."""
        self._forget(now_s)
        total = OnlineLatencies()
        for _, told in self._seconds:
            total.merge(told)
        return total

    def _forget(self, now_s: float) -> None:
        while self._seconds and self._seconds[0][0] <= now_s - self._span_s:
            self._seconds.popleft()
