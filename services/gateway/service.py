"""The gateway's life: listen on the bus, then on HTTP; on a signal drain HTTP, then go."""

import asyncio
from collections.abc import Callable, Iterable
from operator import attrgetter

import msgspec
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from services.gateway.api.app import create_app
from services.gateway.api.context import Context
from services.gateway.http.server import HttpServer
from services.gateway.live.registry import LiveExecutor
from services.gateway.settings import GatewaySettings
from shared.bus import Bus
from shared.clock import Clock
from shared.process.file_limit import raise_file_limit
from shared.process.service import Details, Service
from shared.process.telemetry import reading
from shared.protocol.executors import ExecutorCounters
from shared.watch.probe import executor_probe


class GatewayService(Service):
    """Everything of one gateway process."""

    name = "gateway"

    def __init__(self, bus: Bus, settings: GatewaySettings, clock: Clock) -> None:
        self._bus = bus
        self._settings = settings
        self._clock = clock
        self._context: Context
        self._http: HttpServer

    async def start(self) -> None:
        """HTTP comes last: who can connect can be served, or is told why not."""
        settings = self._settings
        context = self._context = await Context.open(self._bus, settings, self._clock)
        for each in (context.keys, context.registry, context.tracker, context.flex):
            await each.start()
        await self._bus.flush()
        raise_file_limit()
        self._http = HttpServer(create_app(context), settings)
        observe(context.telemetry.meter, context, self._http)
        await self._http.start()

    async def run(self) -> None:
        """When cancelled, open answers finish first, with everything they need still running."""
        context, registry = self._context, self._context.registry
        probe = executor_probe(self._bus, lambda: (each.info for each in registry.live()), registry.lose)
        live = registry, probe, context.tuning, context.tracker, context.flex
        followers = (*live, context.keys, context.dashboard, context.files, context.batches)
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(each.run()) for each in followers]
            try:
                await self._http.serve()
            finally:
                context.dashboard.close()
                await self._http.drain(self._end_answers)
                for task in following:
                    task.cancel()

    async def _end_answers(self) -> None:
        """Each says so to its client: a stream with an error as its last event."""
        for tracker in (self._context.tracker, self._context.flex):
            await tracker.fail_all("the gateway is shutting down; send the request again")

    async def stop(self) -> None:
        self._context.telemetry.close()

    def health(self) -> str:
        return self._context.not_ready_because() or "ok"

    def details(self) -> Details:
        context = self._context
        return {
            "url": f"http://{self._settings.host}:{self._settings.port}",
            "model": self._settings.model_name,
            "live_requests": context.tracker.num_live,
            "waiting_requests": len(context.tracker.room),
            "flex_requests": context.flex.num_live,
            "refused_requests": context.http_metrics.num_refused,
            "executors": len(context.registry.live()),
        }


def observe(meter: Meter, context: Context, http: HttpServer) -> None:
    """Whenever metrics are asked for: connections, and what has not ended of HTTP requests, of online ones, those
    without a token, and of flex ones; of each live executor, what its last heartbeat says and what the router expects
    of it."""
    router, tracker, flex = context.router, context.tracker, context.flex
    counts: dict[str, Callable[[], int]] = {
        "live.requests": lambda: tracker.num_live,
        "waiting.requests": lambda: len(tracker.room),
        "flex.requests": lambda: flex.num_live,
        "http.connections": lambda: len(http.state.connections),
        "http.answering": lambda: len(http.state.tasks),
    }
    for name, count in counts.items():
        meter.create_observable_gauge(f"slackwater.{name}", [reading(count)])
    totals: dict[str, Callable[[], int]] = {
        "http.stalled": lambda: http.clients.num_stalled,
        "http.refused_connections": lambda: http.clients.num_refused,
        "messages.dropped": lambda: context.bus.num_dropped,
        "messages.failed": lambda: context.bus.num_failed,
    }
    for name, count in totals.items():
        meter.create_observable_counter(f"slackwater.{name}", [reading(count)])

    def each(read: Callable[[LiveExecutor], float]) -> list[Callable[[CallbackOptions], Iterable[Observation]]]:
        live = context.registry.live
        return [lambda _: [Observation(read(one), {"executor_id": one.info.executor_id}) for one in live()]]

    what = "predicted until a short request that is sent there now has its answer"
    load = each(lambda executor: router.load_ms(executor) / 1e3)
    meter.create_observable_gauge("slackwater.executor.load", load, "s", what)
    for name in ("online_waiting", "online_running", "offline_waiting", "offline_running", "num_free_blocks"):
        beat = each(attrgetter(f"heartbeat.{name}"))
        meter.create_observable_gauge(f"slackwater.executor.{name}", beat, "", "at the last heartbeat")
    for field in msgspec.structs.fields(ExecutorCounters):
        name, unit = (field.name.removesuffix("_s"), "s") if field.name.endswith("_s") else (field.name, "")
        counter = each(attrgetter(f"heartbeat.counters.{field.name}"))
        meter.create_observable_counter(f"slackwater.executor.{name}", counter, unit, "since the executor started")
