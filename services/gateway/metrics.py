"""What the gateway measures: requests, latencies and tokens, and the executors as their heartbeats tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from services.gateway.registry import ExecutorRegistry
from shared.protocol.messages import ExecutorCounters, FinishReason, Heartbeat

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


class HttpMetrics:
    """Of the HTTP requests."""

    def __init__(self, meter: Meter) -> None:
        self._requests = meter.create_counter("slackwater.http.requests", description="by route and status")

    def answered(self, method: str, route: str, status: int) -> None:
        self._requests.add(1, {"method": method, "route": route, "status": status})


def observe_executors(meter: Meter, registry: ExecutorRegistry) -> None:
    """Gauges and counters per live executor, read from its last heartbeat at each scrape."""
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


def observe_live_requests(meter: Meter, count: Callable[[], int]) -> None:
    """A gauge of the online requests that have not ended."""
    meter.create_observable_gauge("slackwater.live.requests", [lambda options: [Observation(count())]])


def _heartbeat_field(name: str) -> Callable[[Heartbeat], float]:
    return lambda heartbeat: getattr(heartbeat, name)


def _counter_field(name: str) -> Callable[[Heartbeat], float]:
    return lambda heartbeat: getattr(heartbeat.counters, name)


def _each(
    registry: ExecutorRegistry, read: Callable[[Heartbeat], float]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(options: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(read(executor.heartbeat), {"executor_id": executor.info.executor_id})
            for executor in registry.live()
        ]

    return observe
