"""The online latencies that SLOs are about, and what systems reach under an SLO on one of them."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.lab.lab import HYGEN, SARATHI, STAR, Bench
from benchmarks.lab.outcome import Found, Measured

NO_SLO, OURS, THEIRS = "sarathi++ (no SLO)", "hygen", "hygen-star"


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


@dataclass(frozen=True, slots=True)
class Kept:
    """What hygen and hygen-star reach under one SLO."""

    bench: Bench
    metric: Metric
    tolerance: float
    hygen: Found
    star: Found

    @classmethod
    def of(cls, bench: Bench, metric: Metric, tolerance: float) -> Kept:
        hygen, star = (bench.largest(system, [metric.slo(tolerance)]) for system in (HYGEN, STAR))
        return cls(bench, metric, tolerance, hygen, star)

    @property
    def runs(self) -> dict[str, Measured]:
        """And sarathi++ without one."""
        return {NO_SLO: self.bench.run(SARATHI), THEIRS: self.star.measured, OURS: self.hygen.measured}

    def ratio(self, measured: Measured) -> float:
        """Of the SLO's metric, to online only."""
        return self.metric.ratio(self.bench, measured)

    def gain(self, measured: Measured) -> float:
        """Offline throughput over hygen-star's; not a number where that has none."""
        return measured.offline_tokens_per_s / (self.star.measured.offline_tokens_per_s or float("nan"))
