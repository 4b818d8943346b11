"""OpenTelemetry metrics of one process, shown in Prometheus's text format."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector


class Telemetry:
    """A meter with a registry of its own, so that two services in one process do not mix."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, service_name: str) -> None:
        self.registry = CollectorRegistry()  # takes what is read when it is asked for, too
        reader = PrometheusMetricReader(registry=self.registry, scope_info_enabled=False)
        resource = Resource.create({"service.name": service_name})
        self._provider = MeterProvider(metric_readers=[reader], resource=resource)
        self.meter: Meter = self._provider.get_meter("slackwater")

    async def render(self) -> bytes:
        """All metrics as Prometheus scrapes them. Whatever else the process does has its turn between any two."""
        texts = []
        for metric in self.registry.collect():
            texts.append(generate_latest(_Alone(metric)))
            await asyncio.sleep(0)
        return b"".join(texts)

    def close(self) -> None:
        self._provider.shutdown()


@dataclass(frozen=True, slots=True)
class _Alone(Collector):
    """One metric, as what is rendered."""

    metric: Metric

    def collect(self) -> Iterator[Metric]:
        yield self.metric
