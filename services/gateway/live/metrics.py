"""What the gateway measures: requests, latencies and tokens, and the executors as their heartbeats tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from services.gateway.http.server import HttpServer
from services.gateway.live.registry import ExecutorRegistry, LiveExecutor
from services.gateway.live.router import Router
from shared.protocol.messages import ExecutorCounters
from shared.protocol.sampling import FinishReason

TTFT_BUCKETS_S = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]
TBT_BUCKETS_S = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5]


class GenerationMetrics:
    """Of the online requests, as tokens arrive from the bus."""

    def __init__(self, meter: Meter) -> None:
        self._prompt_tokens = meter.create_counter("slackwater.prompt.tokens", description="of online requests")
        self._cached_tokens = meter.create_counter("slackwater.cached.tokens", description="of online prompts")
        self._output_tokens = meter.create_counter("slackwater.output.tokens", description="of online requests")
        self._finished = meter.create_counter("slackwater.finished.requests", description="online, by finish reason")
        self._resumed = meter.create_counter("slackwater.resumed.requests", description="went on at another executor")
        self._ttft = meter.create_histogram(
            "slackwater.ttft",
            unit="s",
            description="request to first token",
            explicit_bucket_boundaries_advisory=TTFT_BUCKETS_S,
        )
        self._tbt = meter.create_histogram(
            "slackwater.tbt",
            unit="s",
            description="between tokens of a request",
            explicit_bucket_boundaries_advisory=TBT_BUCKETS_S,
        )

    def started(self, num_prompt_tokens: int) -> None:
        self._prompt_tokens.add(num_prompt_tokens)

    def tokens(self, started_s: float, last_token_s: float | None, now_s: float, num_tokens: int) -> None:
        """One step's tokens of one request; the first have a TTFT, the later ones a TBT."""
        self._output_tokens.add(num_tokens)
        if last_token_s is None:
            self._ttft.record(now_s - started_s)
        else:
            self._tbt.record((now_s - last_token_s) / num_tokens)

    def resumed(self) -> None:
        self._resumed.add(1)

    def finished(self, finish_reason: FinishReason, num_cached_tokens: int) -> None:
        self._finished.add(1, {"reason": finish_reason.value})
        self._cached_tokens.add(num_cached_tokens)


class FlexMetrics:
    """Of the requests of service tier flex."""

    def __init__(self, meter: Meter) -> None:
        self._finished = meter.create_counter("slackwater.flex.finished.requests", description="by finish reason")
        self._output_tokens = meter.create_counter("slackwater.flex.output.tokens", description="of finished requests")
        self._resumed = meter.create_counter("slackwater.flex.resumed.requests", description="submitted once more")

    def resumed(self) -> None:
        self._resumed.add(1)

    def finished(self, finish_reason: FinishReason, num_output_tokens: int) -> None:
        self._finished.add(1, {"reason": finish_reason.value})
        self._output_tokens.add(num_output_tokens)


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


def observe_executors(meter: Meter, registry: ExecutorRegistry, router: Router) -> None:
    """Gauges and counters per live executor, read from its last heartbeat at each scrape, and what the router expects
    of it."""
    meter.create_observable_gauge(
        "slackwater.executor.load",
        [_each(registry, lambda executor: router.load_ms(executor) / 1e3)],
        unit="s",
        description="predicted until a short request that is sent there now has its answer",
    )
    for name in ("online_waiting", "online_running", "offline_waiting", "offline_running", "num_free_blocks"):
        meter.create_observable_gauge(
            f"slackwater.executor.{name}",
            [_each(registry, _heartbeat_field(name))],
            description="at the last heartbeat",
        )
    for field in msgspec.structs.fields(ExecutorCounters):
        name, unit = (field.name.removesuffix("_s"), "s") if field.name.endswith("_s") else (field.name, "")
        meter.create_observable_counter(
            f"slackwater.executor.{name}",
            [_each(registry, _counter_field(field.name))],
            unit=unit,
            description="since the executor started",
        )


def observe_live_requests(
    meter: Meter, num_live: Callable[[], int], num_waiting: Callable[[], int], num_flex: Callable[[], int]
) -> None:
    """Gauges of the online requests that have not ended, of those of them without a token, and of the flex requests
    that have not ended."""
    for name, count in (("live", num_live), ("waiting", num_waiting), ("flex", num_flex)):
        meter.create_observable_gauge(f"slackwater.{name}.requests", [_count(count)])


def observe_connections(meter: Meter, server: HttpServer) -> None:
    """Of HTTP: connections, requests being answered, and clients cut off because they did not read."""
    meter.create_observable_gauge("slackwater.http.connections", [_count(lambda: server.num_connections)])
    meter.create_observable_gauge("slackwater.http.answering", [_count(lambda: server.num_tasks)])
    meter.create_observable_counter("slackwater.http.stalled", [_count(lambda: server.num_stalled)])


def _count(count: Callable[[], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda options: [Observation(count())]


def _heartbeat_field(name: str) -> Callable[[LiveExecutor], float]:
    return lambda executor: getattr(executor.heartbeat, name)


def _counter_field(name: str) -> Callable[[LiveExecutor], float]:
    return lambda executor: getattr(executor.heartbeat.counters, name)


def _each(
    registry: ExecutorRegistry, read: Callable[[LiveExecutor], float]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(read(executor), {"executor_id": executor.info.executor_id}) for executor in registry.live()]

    return observe
