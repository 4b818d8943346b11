"""OpenTelemetry metrics of one process, shown in Prometheus's text format."""

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


class Telemetry:
    """A meter with a registry of its own, so that two services in one process do not mix."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, service_name: str) -> None:
        self.registry = CollectorRegistry()  # takes what is read when it is asked for, too
        reader = PrometheusMetricReader(registry=self.registry, scope_info_enabled=False)
        resource = Resource.create({"service.name": service_name})
        self._provider = MeterProvider(metric_readers=[reader], resource=resource)
        self.meter: Meter = self._provider.get_meter("slackwater")

    def render(self) -> bytes:
        """All metrics as Prometheus scrapes them."""
        return generate_latest(self.registry)

    def close(self) -> None:
        self._provider.shutdown()
