"""SLOs as people say them: ``ttft_p99<=800ms``, ``tbt_mean<=1.05x``, ``tpot p50 < 0.05 s``, ``tbt_p99<=105%``."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from loadgen.errors import SloError
from loadgen.metrics import LatencySamples
from loadgen.report import OnlineReport, SloReport, Summary

METRICS = {
    "ttft": "ttft_ms",
    "tbt": "tbt_ms",
    "itl": "tbt_ms",
    "tpot": "tpot_ms",
    "normalized_latency": "normalized_latency_ms",
}
STATISTICS = {"mean": "mean", "avg": "mean", "p50": "p50", "median": "p50", "p90": "p90", "p99": "p99"}
MILLISECONDS = {"us": 0.001, "ms": 1.0, "s": 1000.0}
RATIOS = {"x": 1.0, "%": 0.01}

EXPRESSION = re.compile(r"(?:online\.)?([a-z_]+?)(?:_ms)?[._ ]([a-z]+\d*)\s*(<=|<|≤)\s*(\d+\.?\d*|\.\d+)\s*([a-z%]*)")


@dataclass(frozen=True, slots=True)
class Slo:
    """A parsed SLO: ``limit`` in milliseconds, or with ``relative`` in multiples of the baseline's figure."""

    expr: str
    metric: str  # a field of OnlineReport
    statistic: str  # a field of Summary
    limit: float
    relative: bool
    strict: bool  # "<"

    def judge(self, online: OnlineReport, samples: LatencySamples, baseline: OnlineReport | None) -> SloReport:
        """Measured against the bound. An SLO with nothing to measure, or nothing to compare with, is not met."""
        bound = self._bound_ms(baseline)
        value = _figure(online, self.metric, self.statistic)
        if bound is None or value is None:
            return SloReport(self.expr, bound, value, met=False, attainment=None)
        met = value < bound if self.strict else value <= bound
        return SloReport(self.expr, bound, value, met, self._attainment(online, samples, bound))

    def _bound_ms(self, baseline: OnlineReport | None) -> float | None:
        if not self.relative:
            return self.limit
        figure = None if baseline is None else _figure(baseline, self.metric, self.statistic)
        return None if figure is None else self.limit * figure

    def _attainment(self, online: OnlineReport, samples: LatencySamples, bound: float) -> float:
        ordered = sorted(getattr(samples, self.metric))
        within = bisect_left(ordered, bound) if self.strict else bisect_right(ordered, bound)
        failed = 0 if self.metric == "tbt_ms" else online.errors
        return within / (len(ordered) + failed)


def parse_slo(expr: str) -> Slo:
    """Raises SloError with what to write instead."""
    match = EXPRESSION.fullmatch(expr.strip().lower())
    if match is None:
        raise SloError(
            f"SLO {expr!r} is not understood: write METRIC_STATISTIC<=BOUND, for example "
            f"ttft_p99<=800ms or tbt_mean<=1.05x; metrics: {', '.join(METRICS)}; statistics: {', '.join(STATISTICS)}"
        )
    metric, statistic, operator, number, unit = match.groups()
    if metric not in METRICS:
        raise SloError(f"SLO {expr!r}: unknown metric {metric!r}; known: {', '.join(METRICS)}")
    if statistic not in STATISTICS:
        raise SloError(f"SLO {expr!r}: unknown statistic {statistic!r}; known: {', '.join(STATISTICS)}")
    factor = MILLISECONDS.get(unit) or RATIOS.get(unit)
    if factor is None:
        raise SloError(f"SLO {expr!r}: the bound needs a unit: ms, s or us, or x or % of the baseline")
    return Slo(
        expr, METRICS[metric], STATISTICS[statistic], float(number) * factor, unit in RATIOS, strict=operator == "<"
    )


def _figure(online: OnlineReport, metric: str, statistic: str) -> float | None:
    summary: Summary | None = getattr(online, metric)
    return None if summary is None else getattr(summary, statistic)
