"""What is counted of the answers of a gateway."""

from opentelemetry.metrics import NoOpMeter

from services.gateway.http.answers import HttpMetrics
from shared.clock import SystemClock


def test_a_gateway_that_is_not_ready_yet_has_no_errors_to_show() -> None:
    metrics = HttpMetrics(NoOpMeter("test"), clock := SystemClock())
    for route in ("/ready", "/health", "/ping"):
        metrics.answered("GET", route, 503, None)
    assert metrics.tally.last_hour(clock.monotonic_s()).errors == {} and metrics.tally.num_server_errors == 0
    metrics.answered("POST", "/v1/completions", 503, None)
    assert metrics.tally.last_hour(clock.monotonic_s()).errors == {"503": 1} and metrics.tally.num_server_errors == 1
    assert metrics.keys.uses()[""].errors == 1
