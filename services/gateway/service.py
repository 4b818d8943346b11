"""The gateway's life: listen on the bus, then on HTTP; on a signal drain HTTP, then go."""

from __future__ import annotations

import asyncio
from pathlib import Path

from services.gateway.access.admission import Admission
from services.gateway.access.api_keys import ApiKeys
from services.gateway.api.app import create_app
from services.gateway.api.context import Context
from services.gateway.api.operations import not_ready_because
from services.gateway.dashboard.hub import DashboardHub
from services.gateway.http.body_intake import BodyIntake
from services.gateway.http.server import HttpServer
from services.gateway.live.flex_tracker import FlexTracker
from services.gateway.live.metrics import (
    FlexMetrics,
    GenerationMetrics,
    HttpMetrics,
    observe_connections,
    observe_executors,
    observe_live_requests,
)
from services.gateway.live.registry import ExecutorRegistry
from services.gateway.live.router import Router
from services.gateway.live.tracker import RequestTracker
from services.gateway.settings import GatewaySettings
from services.gateway.store.batches import BatchStore
from services.gateway.store.files import FileStore
from shared.bus import Bus
from shared.clock import Clock
from shared.openai.completions.requests import ServedModel
from shared.process.service import Details
from shared.process.telemetry import Telemetry
from shared.text.model_folder import ModelFacts
from shared.text.tokenizer import Tokenizer
from shared.watch.executor_probe import ExecutorProbe
from shared.watch.tuning import Tuning

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
        gateway_id = settings.resolved_gateway_id()
        self._tuning = Tuning(bus, on_change=lambda: None)
        self._router = Router(self._registry, self._tuning)
        self._tracker = RequestTracker(
            bus,
            self._registry,
            self._router,
            gateway_id,
            clock,
            GenerationMetrics(self._telemetry.meter),
        )
        self._flex = FlexTracker(bus, self._registry, gateway_id, clock, FlexMetrics(self._telemetry.meter))
        self._keys = ApiKeys(bus, settings, clock)
        limits, room = settings.admission_limits(), self._tracker.room
        self._admission = Admission(bus, clock, limits, room, lambda: self._tracker.num_live)
        self._dashboard = DashboardHub(bus, clock, settings.model_name)
        self._context: Context
        self._http: HttpServer

    async def start(self) -> None:
        """HTTP comes last: who can connect can be served, or is told why not."""
        observe_executors(self._telemetry.meter, self._registry, self._router)
        observe_live_requests(
            self._telemetry.meter,
            lambda: self._tracker.num_live,
            lambda: len(self._tracker.room),
            lambda: self._flex.num_live,
        )
        await self._keys.start()
        self._context = await self._make_context()
        await self._registry.start()
        await self._tracker.start()
        await self._flex.start()
        await self._bus.flush()
        app = create_app(self._context, self._settings.allowed_origins())
        settings = self._settings
        self._http = HttpServer(app, settings.host, settings.port, DRAIN_S, settings.write_timeout_s)
        observe_connections(self._telemetry.meter, self._http)
        await self._http.start()

    async def run(self) -> None:
        """When cancelled, open answers finish first, with everything they need still running."""
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(each.run()) for each in self._followers()]
            try:
                await self._http.serve()
            finally:
                self._dashboard.close()
                await self._http.drain()
                for task in following:
                    task.cancel()

    def _followers(
        self,
    ) -> tuple[ExecutorRegistry | ExecutorProbe | Tuning | RequestTracker | FlexTracker | ApiKeys | DashboardHub, ...]:
        registry = self._registry
        probe = ExecutorProbe(self._bus, lambda: (each.info for each in registry.live()), registry.lose)
        return registry, probe, self._tuning, self._tracker, self._flex, self._keys, self._dashboard

    async def stop(self) -> None:
        self._telemetry.close()

    def health(self) -> str:
        return not_ready_because(self._context) or "ok"

    def details(self) -> Details:
        return {
            "url": f"http://{self._settings.host}:{self._settings.port}",
            "model": self._settings.model_name,
            "live_requests": self._tracker.num_live,
            "waiting_requests": len(self._tracker.room),
            "flex_requests": self._flex.num_live,
            "refused_requests": self._context.http_metrics.num_refused,
            "executors": len(self._registry.live()),
        }

    async def _make_context(self) -> Context:
        folder = Path(self._settings.model_path)
        return Context(
            bus=self._bus,
            clock=self._clock,
            model=ServedModel(
                self._settings.model_name,
                ModelFacts.read(folder).max_model_len,
                self._settings.max_prompt_tokens or None,
            ),
            created_s=int(self._clock.unix_s()),
            tokenizer=Tokenizer.from_folder(folder),
            registry=self._registry,
            tracker=self._tracker,
            flex=self._flex,
            admission=self._admission,
            keys=self._keys,
            files=await FileStore.open(self._bus, self._clock),
            batches=await BatchStore.open(self._bus),
            telemetry=self._telemetry,
            http_metrics=HttpMetrics(self._telemetry.meter),
            bodies=BodyIntake(self._settings.max_pending_body_bytes, self._settings.body_timeout_s),
            dashboard=self._dashboard,
            max_body_bytes=self._settings.max_body_bytes,
        )
