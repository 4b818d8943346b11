"""The online latencies that SLOs are about."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.lab.lab import Bench
from benchmarks.lab.outcome import Measured


@dataclass(frozen=True, slots=True)
class Metric:
    """``name``: as in SLO expressions."""

    name: str
    label: str

    def slo(self, tolerance: float) -> str:
        """As people write it. ``tolerance``: of interference, as a share."""
        return f"{self.name}<={1 + tolerance:g}x"

    def ratio(self, bench: Bench, measured: Measured) -> float:
        """Its latency over the online-only run's."""
        return measured.latency_ms(self.name) / bench.online_only.latency_ms(self.name)


MEAN_TBT = Metric("tbt_mean", "mean TBT")
P99_TBT = Metric("tbt_p99", "p99 TBT")
MEAN_TTFT = Metric("ttft_mean", "mean TTFT")
P99_TTFT = Metric("ttft_p99", "p99 TTFT")
METRICS = (MEAN_TBT, P99_TBT, MEAN_TTFT, P99_TTFT)
TOLERANCES = (0.05, 0.1, 0.2, 0.3, 0.5)  # of interference: an SLO of 1.05x to 1.5x of online-only
