"""The gateway's life: listen on the bus, then on HTTP; on a signal drain HTTP, then go."""

from __future__ import annotations

import asyncio
from pathlib import Path

from services.gateway.app import create_app
from services.gateway.batch_store import BatchStore
from services.gateway.context import Context
from services.gateway.file_store import FileStore
from services.gateway.http_server import HttpServer
from services.gateway.metrics import GenerationMetrics, HttpMetrics, observe_executors, observe_live_requests
from services.gateway.operations import not_ready_because
from services.gateway.registry import ExecutorRegistry
from services.gateway.settings import GatewaySettings
from services.gateway.tracker import RequestTracker
from shared.bus import Bus
from shared.clock import Clock
from shared.model_folder import ModelFacts
from shared.openai.requests import ServedModel
from shared.service import Details
from shared.telemetry import Telemetry
from shared.tokenizer import Tokenizer

DRAIN_S = 10


class GatewayService:
    """Everything of one gateway process."""

    name = "gateway"

    def __init__(self, bus: Bus, settings: GatewaySettings, clock: Clock) -> None:
        self._bus = bus
        self._settings = settings
        self._clock = clock
        self._telemetry = Telemetry(self.name)
        self._registry = ExecutorRegistry(bus, settings.model_name)
        self._tracker = RequestTracker(
            bus,
            self._registry,
            settings.resolved_gateway_id(),
            clock,
            GenerationMetrics(self._telemetry.meter),
        )
        self._context: Context
        self._http: HttpServer

    async def start(self) -> None:
        """HTTP comes last: who can connect can be served, or is told why not."""
        observe_executors(self._telemetry.meter, self._registry)
        observe_live_requests(self._telemetry.meter, lambda: self._tracker.num_live)
        self._context = await self._make_context()
        await self._registry.start()
        await self._tracker.start()
        await self._bus.flush()
        self._http = HttpServer(create_app(self._context), self._settings.host, self._settings.port, DRAIN_S)
        await self._http.start()

    async def run(self) -> None:
        """When cancelled, open answers finish first, with everything they need still running."""
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(self._registry.run()), tasks.create_task(self._tracker.run())]
            try:
                await self._http.serve()
            finally:
                await self._http.drain()
                for task in following:
                    task.cancel()

    async def stop(self) -> None:
        self._telemetry.close()

    def health(self) -> str:
        return not_ready_because(self._context) or "ok"

    def details(self) -> Details:
        return {
            "url": f"http://{self._settings.host}:{self._settings.port}",
            "model": self._settings.model_name,
            "live_requests": self._tracker.num_live,
            "executors": len(self._registry.live()),
        }

    async def _make_context(self) -> Context:
        folder = Path(self._settings.model_path)
        return Context(
            bus=self._bus,
            clock=self._clock,
            model=ServedModel(self._settings.model_name, ModelFacts.read(folder).max_model_len),
            created_s=int(self._clock.unix_s()),
            tokenizer=Tokenizer.from_folder(folder),
            registry=self._registry,
            tracker=self._tracker,
            files=await FileStore.open(self._bus),
            batches=await BatchStore.open(self._bus),
            telemetry=self._telemetry,
            http_metrics=HttpMetrics(self._telemetry.meter),
        )
