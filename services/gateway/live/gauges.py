"""What is seen of live requests and executors whenever metrics are asked for."""

from collections.abc import Callable, Iterable
from operator import attrgetter

import msgspec
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from services.gateway.live.flex_tracker import FlexTracker
from services.gateway.live.online_tracker import OnlineTracker
from services.gateway.live.registry import ExecutorRegistry, LiveExecutor
from services.gateway.live.router import Router
from shared.process.telemetry import reading
from shared.protocol.executors import ExecutorCounters


def observe_live(meter: Meter, router: Router, tracker: OnlineTracker, flex: FlexTracker) -> None:
    """Of the requests that have not ended: online ones, those of them without a token, and flex ones. Of each live
    executor, at each scrape: what its last heartbeat says, and what the router expects of it."""
    counts = {"live": lambda: tracker.num_live, "waiting": lambda: len(tracker.room), "flex": lambda: flex.num_live}
    for name, count in counts.items():
        meter.create_observable_gauge(f"slackwater.{name}.requests", [reading(count)])
    load = _each(router.registry, lambda executor: router.load_ms(executor) / 1e3)
    what = "predicted until a short request that is sent there now has its answer"
    meter.create_observable_gauge("slackwater.executor.load", [load], "s", what)
    for name in ("online_waiting", "online_running", "offline_waiting", "offline_running", "num_free_blocks"):
        read = _each(router.registry, attrgetter(f"heartbeat.{name}"))
        meter.create_observable_gauge(f"slackwater.executor.{name}", [read], "", "at the last heartbeat")
    for field in msgspec.structs.fields(ExecutorCounters):
        name, unit = (field.name.removesuffix("_s"), "s") if field.name.endswith("_s") else (field.name, "")
        read = _each(router.registry, attrgetter(f"heartbeat.counters.{field.name}"))
        meter.create_observable_counter(f"slackwater.executor.{name}", [read], unit, "since the executor started")


def _each(
    registry: ExecutorRegistry, read: Callable[[LiveExecutor], float]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(read(executor), {"executor_id": executor.info.executor_id}) for executor in registry.live()]

    return observe
