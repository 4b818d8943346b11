"""One series of ``/metrics``: what it is called, and what it says."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from opentelemetry.metrics import Counter, Histogram, Meter
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

PREFIX = "slackwater."
UNITS = {"s": "seconds"}  # as Prometheus has them in a name

Readings = Iterable[tuple[float, dict[str, str]]]  # values, each with its labels


class Type(enum.StrEnum):
    """As Prometheus tells it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Series:
    """``name``: of the instrument, with dots where the series has underscores; vLLM's are as vLLM has them.
    ``buckets``: a histogram's upper bounds, in its unit."""

    name: str
    type: Type
    meaning: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def exposed(self) -> str:
        """Its name for Prometheus; a histogram's with ``_bucket``, ``_sum`` and ``_count`` behind it."""
        words = [self.name.replace(".", "_"), UNITS.get(self.unit, ""), "total" if self.type is Type.COUNTER else ""]
        return "_".join(filter(None, words))

    def counter(self, meter: Meter) -> Counter:
        """To add to. One without labels is there from the beginning: Prometheus does not see that a series that appears
        has grown."""
        assert self.type is Type.COUNTER
        counter = meter.create_counter(self.name, self.unit, self.meaning)
        if not self.labels:
            counter.add(0)
        return counter

    def histogram(self, meter: Meter) -> Histogram:
        """To record into."""
        assert self.type is Type.HISTOGRAM
        bounds = list(self.buckets)
        return meter.create_histogram(self.name, self.unit, self.meaning, explicit_bucket_boundaries_advisory=bounds)

    def observe(self, registry: CollectorRegistry, read: Callable[[], Readings]) -> None:
        """Have it read whenever metrics are asked for."""
        registry.register(_Observed(self, read))

    def read(self, values: Iterable[tuple[Sequence[str], float]]) -> Metric:
        """With these values, each behind its labels: all of them, or none where one cannot be read. What is wrong then
        is in the log, and the other series are told all the same."""
        assert self.type is not Type.HISTOGRAM
        make = CounterMetricFamily if self.type is Type.COUNTER else GaugeMetricFamily
        family = make(self.exposed, self.meaning, labels=self.labels)
        try:
            found = [(labels, float(value)) for labels, value in values]
        except Exception:
            logger.exception("a series could not be read", extra={"series": self.exposed})
            return family
        for labels, value in found:
            family.add_metric(labels, value)
        return family


class _Observed(Collector):
    """OpenTelemetry would keep each set of labels that there ever was, and tell no others beyond 2,000."""

    def __init__(self, series: Series, read: Callable[[], Readings]) -> None:
        self._series = series
        self._read = read

    def collect(self) -> Iterator[Metric]:
        yield self._series.read(self._values())

    def _values(self) -> Iterator[tuple[list[str], float]]:
        for value, labels in self._read():
            yield [labels[label] for label in self._series.labels], value


def own(
    name: str,
    type: Type,
    meaning: str,
    unit: str = "",
    labels: tuple[str, ...] = (),
    buckets: tuple[float, ...] = (),
) -> Series:
    """One of Slackwater's."""
    return Series(PREFIX + name, type, meaning, unit, labels, buckets)
