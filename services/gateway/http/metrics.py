"""What is measured of HTTP: requests, connections, clients that do not read."""

from __future__ import annotations

from opentelemetry.metrics import Meter

from services.gateway.http.server import HttpServer
from shared.process.telemetry import reading


class HttpMetrics:
    """Of the HTTP requests."""

    def __init__(self, meter: Meter) -> None:
        self._requests = meter.create_counter("slackwater.http.requests", description="by route and status")
        self._refused = meter.create_counter("slackwater.refused.requests", description="valid, not served; by reason")
        self.num_refused = 0

    def answered(self, method: str, route: str, status: int) -> None:
        self._requests.add(1, {"method": method, "route": route, "status": status})

    def refused(self, reason: str) -> None:
        self.num_refused += 1
        self._refused.add(1, {"reason": reason})


def observe_connections(meter: Meter, server: HttpServer) -> None:
    """Of HTTP: connections, requests being answered, and clients cut off because they did not read."""
    meter.create_observable_gauge("slackwater.http.connections", [reading(lambda: server.num_connections)])
    meter.create_observable_gauge("slackwater.http.answering", [reading(lambda: server.num_tasks)])
    meter.create_observable_counter("slackwater.http.stalled", [reading(lambda: server.num_stalled)])
