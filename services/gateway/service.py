"""The gateway's life: listen on the bus, then on HTTP; on a signal drain HTTP, then go."""

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp

from services.gateway.api.app import create_app
from services.gateway.api.context import Context
from services.gateway.http.errors import SHUTTING_DOWN
from services.gateway.http.server import HttpServer, Listener
from services.gateway.readings import observe
from services.gateway.settings import GatewaySettings
from shared.bus import Bus
from shared.clock import Clock
from shared.process.file_limit import raise_file_limit
from shared.process.service import Details, Service


class GatewayService(Service):
    """Everything of one gateway process."""

    name = "gateway"

    def __init__(
        self,
        bus: Bus,
        settings: GatewaySettings,
        clock: Clock,
        listen: Callable[[ASGIApp, GatewaySettings], Listener] = HttpServer,
    ) -> None:
        """``listen``: what has HTTP requests answered by the application."""
        self._bus = bus
        self._settings = settings
        self._clock = clock
        self._listen = listen
        self._context: Context
        self._http: Listener

    async def start(self) -> None:
        """HTTP comes last: who can connect can be served, or is told why not."""
        settings = self._settings
        context = self._context = await Context.open(self._bus, settings, self._clock)
        for each in (context.keys, context.usage, *context.models):
            await each.start()
        await self._bus.flush()
        raise_file_limit()
        self._http = self._listen(create_app(context), settings)
        observe(context.telemetry.registry, context, self._http)
        await self._http.start()

    async def run(self) -> None:
        """When cancelled, open answers finish first, with everything they need still running."""
        context = self._context
        followers = (
            *context.models,
            context.tuning,
            context.bus_lag,
            context.keys,
            context.usage,
            context.dashboard,
            context.files,
            context.batches,
        )
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(each.run()) for each in followers]
            try:
                await self._http.serve()
            finally:
                context.dashboard.close()
                await self._http.drain(self._end_answers)
                await context.usage.stop()
                for task in following:
                    task.cancel()

    async def _end_answers(self) -> None:
        """Each says so to its client: a stream with an error as its last event."""
        for tracker in (each for model in self._context.models for each in (model.tracker, model.flex)):
            await tracker.fail_all(SHUTTING_DOWN)

    async def stop(self) -> None:
        self._context.telemetry.close()
        await asyncio.to_thread(self._context.tracing.close)

    def health(self) -> str:
        """Of several models each that cannot be served is told of."""
        unserved = self._context.models.unserved().values()
        return self._context.not_ready_because() or "; ".join(unserved) or "ok"

    def details(self) -> Details:
        context, models = self._context, list(self._context.models)
        return {
            "url": f"http://{self._settings.host}:{self._settings.port}",
            "model": ", ".join(model.served.name for model in models),
            "live_requests": context.models.num_live(),
            "waiting_requests": sum(len(model.tracker.room) for model in models),
            "flex_requests": sum(model.flex.num_live for model in models),
            "refused_requests": context.http_metrics.num_refused,
            "executors": sum(len(model.registry.live()) for model in models),
            **{f"{name}_not_ready": why for name, why in context.models.unserved().items()},
        }
