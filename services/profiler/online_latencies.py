"""Latencies that online users got, added up over time and gateways."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from loadgen.slo import Slo
from shared.latency.histogram import LatencyHistogram
from shared.protocol.messages import OnlineServed

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}  # of the statistics of loadgen.slo; the other is the mean


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

    def histogram(self, slo: Slo) -> LatencyHistogram:
        """Of the SLO's metric."""
        histogram: LatencyHistogram = getattr(self, slo.metric)
        return histogram

    def value_ms(self, slo: Slo) -> float | None:
        """The figure that the SLO is about; None without samples."""
        histogram, quantile = self.histogram(slo), QUANTILES.get(slo.statistic)
        return histogram.mean_ms() if quantile is None else histogram.quantile_ms(quantile)


class RollingLatencies:
    """What was told within the last ``span_s`` seconds; the time is the caller's, and never runs backwards."""

    def __init__(self, span_s: float = 60.0) -> None:
        self._span_s = span_s
        self._told: deque[tuple[float, OnlineServed]] = deque()

    def add(self, now_s: float, served: OnlineServed) -> None:
        self._told.append((now_s, served))
        self._forget(now_s)

    def latencies(self, now_s: float) -> OnlineLatencies:
        """All of it together."""
        self._forget(now_s)
        total = OnlineLatencies()
        for _, served in self._told:
            total.merge(served)
        return total

    def _forget(self, now_s: float) -> None:
        while self._told and self._told[0][0] <= now_s - self._span_s:
            self._told.popleft()
