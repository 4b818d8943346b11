"""SLOs as people say them: ``ttft_p99<=800ms``, ``tbt_mean<=1.05x``, ``tpot p50 < 0.05 s``, ``tbt_p99<=105%``."""

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadgen.errors import SloError
from loadgen.report.metrics import SHARES, LatencySamples, percentile
from loadgen.report.report import OnlineReport, SloReport, Summary

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
SEPARATORS = re.compile(r"[,;]")


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
        """Measured against the bound, a failed request being infinitely late. An SLO with nothing to measure, or with
        nothing to compare with, is not met."""
        bound, value = self.bound_ms(baseline), self.late_value_ms(online, samples)
        attainment = None if bound is None or value is None else self._attainment(online, samples, bound)
        return SloReport(self.expr, bound, value, self.is_met(value, bound), attainment)

    def late_value_ms(self, online: OnlineReport, samples: LatencySamples | None) -> float | None:
        """The figure that is bounded, failed requests being infinitely late; so is it where some failed and there are
        no ``samples``. None where no request was answered."""
        value = self.value_ms(online)
        if value is None or not online.errors:
            return value
        return math.inf if samples is None else self._with_failed_ms(online, samples)

    def bound_ms(self, baseline: OnlineReport | None) -> float | None:
        """None for a relative SLO without a baseline, or where the baseline has no figure."""
        if not self.relative:
            return self.limit
        figure = None if baseline is None else self.value_ms(baseline)
        return None if figure is None else self.limit * figure

    def value_ms(self, online: OnlineReport) -> float | None:
        """The figure that is bounded, of the requests that were answered; None where none was."""
        summary: Summary | None = getattr(online, self.metric)
        return None if summary is None else getattr(summary, self.statistic)

    def is_met(self, value_ms: float | None, bound_ms: float | None) -> bool:
        """An unknown figure or bound is not met."""
        if value_ms is None or bound_ms is None:
            return False
        return value_ms < bound_ms if self.strict else value_ms <= bound_ms

    def _with_failed_ms(self, online: OnlineReport, samples: LatencySamples) -> float:
        """The figure of the samples and of the infinite ones."""
        if self.statistic not in SHARES:
            return math.inf
        ordered, num_failed = self._ordered(online, samples)
        last, position = len(ordered) - 1, (len(ordered) + num_failed - 1) * SHARES[self.statistic]
        return math.inf if position > last else percentile(ordered, position / max(last, 1))

    def _attainment(self, online: OnlineReport, samples: LatencySamples, bound: float) -> float:
        ordered, num_failed = self._ordered(online, samples)
        within = bisect_left(ordered, bound) if self.strict else bisect_right(ordered, bound)
        return within / (len(ordered) + num_failed)

    def _ordered(self, online: OnlineReport, samples: LatencySamples) -> tuple[Sequence[float], float]:
        """The samples, sorted, and how many infinite ones come after them: as many for a failed request as an answered
        one has in the mean."""
        ordered = sorted(getattr(samples, self.metric))
        return ordered, online.errors * len(ordered) / online.completed


def parse_slos(text: str) -> list[Slo]:
    """Separated by commas or semicolons, each once, in its first spelling; none for an empty text. Raises SloError with
    what to write instead."""
    slos = [parse_slo(expr) for expr in map(str.strip, SEPARATORS.split(text)) if expr]
    return list({replace(slo, expr=""): slo for slo in reversed(slos)}.values())[::-1]


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
