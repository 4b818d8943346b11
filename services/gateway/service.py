"""The gateway's life: listen on the bus, then on HTTP; on a signal drain HTTP, then go."""

import asyncio

from services.gateway.api.app import create_app
from services.gateway.api.context import Context
from services.gateway.http.server import HttpServer
from services.gateway.live.gauges import observe_live
from services.gateway.settings import GatewaySettings
from shared.bus import Bus
from shared.clock import Clock
from shared.process.service import Details, Service
from shared.watch.probe import executor_probe

DRAIN_S = 10


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
        meter = context.telemetry.meter
        observe_live(meter, context.router, context.tracker, context.flex)
        for each in (context.keys, context.registry, context.tracker, context.flex):
            await each.start()
        await self._bus.flush()
        app = create_app(context)
        self._http = HttpServer(app, settings.host, settings.port, DRAIN_S, settings.write_timeout_s)
        self._http.observe(meter)
        await self._http.start()

    async def run(self) -> None:
        """When cancelled, open answers finish first, with everything they need still running."""
        context, registry = self._context, self._context.registry
        probe = executor_probe(self._bus, lambda: (each.info for each in registry.live()), registry.lose)
        followers = (registry, probe, context.tuning, context.tracker, context.flex, context.keys, context.dashboard)
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(each.run()) for each in followers]
            try:
                await self._http.serve()
            finally:
                context.dashboard.close()
                await self._http.drain()
                for task in following:
                    task.cancel()

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
