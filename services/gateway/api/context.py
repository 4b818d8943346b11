"""What one gateway consists of, for the HTTP endpoints and for the process that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Request

from services.gateway.access.admission import Admission
from services.gateway.access.api_keys import ApiKeys
from services.gateway.dashboard.hub import DashboardHub
from services.gateway.http.body_intake import BodyIntake
from services.gateway.http.metrics import HttpMetrics
from services.gateway.live.flex_tracker import FlexTracker
from services.gateway.live.metrics import GenerationMetrics
from services.gateway.live.online_tracker import OnlineTracker
from services.gateway.live.registry import ExecutorRegistry
from services.gateway.live.router import Router
from services.gateway.settings import GatewaySettings
from services.gateway.store.batches import BatchStore
from services.gateway.store.files import FileStore
from shared.bus import Bus
from shared.clock import Clock
from shared.openai.completions.requests import ServedModel
from shared.process.telemetry import Telemetry
from shared.text.model_folder import ModelFacts
from shared.text.tokenizer import Tokenizer
from shared.watch.tuning import Tuning


@dataclass(frozen=True, slots=True)
class Context:
    """One per process."""

    settings: GatewaySettings
    bus: Bus
    clock: Clock
    model: ServedModel
    created_s: int  # unix time of the model's entry in /v1/models
    tokenizer: Tokenizer
    registry: ExecutorRegistry
    tuning: Tuning
    router: Router
    tracker: OnlineTracker
    flex: FlexTracker
    admission: Admission
    keys: ApiKeys
    files: FileStore
    batches: BatchStore
    telemetry: Telemetry
    http_metrics: HttpMetrics
    bodies: BodyIntake
    dashboard: DashboardHub

    @classmethod
    async def open(cls, bus: Bus, settings: GatewaySettings, clock: Clock) -> Context:
        """Nothing of it follows the bus yet. Raises BusError and ModelError."""
        folder, telemetry = Path(settings.model_path), Telemetry("gateway")
        max_model_len = ModelFacts.read(folder).max_model_len
        gateway_id, meter = settings.resolved_gateway_id(), telemetry.meter
        registry, tuning = ExecutorRegistry(bus, settings.model_name), Tuning(bus, on_change=lambda: None)
        router = Router(registry, tuning)
        tracker = OnlineTracker(bus, registry, router, gateway_id, clock, GenerationMetrics(meter))
        return cls(
            settings=settings,
            bus=bus,
            clock=clock,
            model=ServedModel(settings.model_name, max_model_len, settings.max_prompt_tokens or None),
            created_s=int(clock.unix_s()),
            tokenizer=Tokenizer.from_folder(folder),
            registry=registry,
            tuning=tuning,
            router=router,
            tracker=tracker,
            flex=FlexTracker(bus, registry, f"{gateway_id}-flex", clock, GenerationMetrics(meter, "flex")),
            admission=Admission(bus, clock, settings, tracker.room, lambda: tracker.num_live),
            keys=ApiKeys(bus, settings, clock),
            files=await FileStore.open(bus, clock),
            batches=await BatchStore.open(bus),
            telemetry=telemetry,
            http_metrics=HttpMetrics(meter),
            bodies=BodyIntake(settings.max_pending_body_bytes, settings.body_timeout_s),
            dashboard=DashboardHub(bus, clock, settings.model_name),
        )

    def not_ready_because(self) -> str | None:
        """Why no completion can be served now; None where one can."""
        if not self.bus.is_connected:
            return "the connection to the bus is lost"
        if not self.registry.available():
            return f"no executor of {self.model.name} is alive"
        return None


def set_context(app: FastAPI, context: Context) -> None:
    app.state.context = context


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context
