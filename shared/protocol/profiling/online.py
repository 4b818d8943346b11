"""What online users got, as gateways tell it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from shared.bounds import Amount, Count
from shared.latency.histogram import LatencyHistogram

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}  # of the statistics of an SLO; the other is the mean


class Figure(Protocol):
    """What an SLO is about."""

    @property
    def metric(self) -> str:
        """A field of OnlineLatencies."""

    @property
    def statistic(self) -> str:
        """One of QUANTILES, or the mean."""


class FinishedOnline(msgspec.Struct, frozen=True, array_like=True):
    """An online request that left its executor, as a workload remembers it."""

    arrival_s: Amount  # unix time, at the gateway
    num_prompt_tokens: Count
    num_output_tokens: Count


class OnlineLatencies(msgspec.Struct):
    """Milliseconds of each metric, named and defined as in a replay's report, but from the arrival at the gateway on,
    and by the arrivals of tokens there."""

    ttft_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    tbt_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    tpot_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    normalized_latency_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    e2e_ms: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)

    @property
    def is_empty(self) -> bool:
        """No samples of anything."""
        return all(getattr(self, metric).is_empty for metric in self.__struct_fields__)

    def merge(self, others: OnlineLatencies) -> None:
        """Count what others counted as well."""
        for metric in self.__struct_fields__:
            getattr(self, metric).merge(getattr(others, metric))

    def histogram(self, figure: Figure) -> LatencyHistogram:
        """Of the figure's metric."""
        histogram: LatencyHistogram = getattr(self, figure.metric)
        return histogram

    def value_ms(self, figure: Figure) -> float | None:
        """None without samples."""
        histogram, quantile = self.histogram(figure), QUANTILES.get(figure.statistic)
        return histogram.mean_ms() if quantile is None else histogram.quantile_ms(quantile)


class OnlineServed(msgspec.Struct):
    """What online users of one gateway got from one executor since its message before; sent at most once a second,
    and only where there is something to tell. Those who count hold one and add to it."""

    executor_id: str
    gateway_id: str
    unix_s: Amount = 0.0
    oldest_open_s: Amount | None = None  # arrival of the oldest request that it still serves
    num_started: Count = 0
    finished: list[FinishedOnline] = []
    latencies: OnlineLatencies = msgspec.field(default_factory=OnlineLatencies)
