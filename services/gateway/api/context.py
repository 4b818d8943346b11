"""What one gateway consists of, for the HTTP endpoints and for the process that runs it."""

from __future__ import annotations

import secrets
from pathlib import Path

from fastapi import Request

from services.gateway.access.admission import Admission
from services.gateway.access.api_keys import ApiKeys
from services.gateway.access.quotas import Quotas
from services.gateway.bus_lag import BusLag
from services.gateway.dashboard.hub import DashboardHub
from services.gateway.http.answers import HttpMetrics
from services.gateway.http.bodies import BodyIntake
from services.gateway.live.flex_tracker import FlexTracker
from services.gateway.live.metrics import KINDS, GenerationMetrics
from services.gateway.live.online_tracker import OnlineTracker
from services.gateway.live.registry import ExecutorRegistry
from services.gateway.live.router import Router
from services.gateway.live.vllm_engines import VllmEngines
from services.gateway.live.vllm_requests import VllmRequests
from services.gateway.response_store import ResponseStore
from services.gateway.settings import GatewaySettings
from services.gateway.store import BatchStore, FileStore
from shared.bus import Bus
from shared.clock import Clock
from shared.openai.served_model import ServedModel, defaults_of
from shared.process.telemetry import Telemetry
from shared.process.tracing import Tracing
from shared.protocol import subjects
from shared.protocol.batches import BatchRecord, FileRecord
from shared.protocol.responses import StoredResponse
from shared.settings.setting import listed
from shared.text.model_folder import ModelFacts
from shared.text.tokenizer import Tokenizer
from shared.watch.tuning import Tuning
from shared.watch.usage_ledger import UsageLedger


class Context:
    """One per process. Nothing of it follows the bus yet where it is made."""

    def __init__(
        self,
        bus: Bus,
        settings: GatewaySettings,
        clock: Clock,
        files: FileStore,
        batches: BatchStore,
        responses: ResponseStore,
    ) -> None:
        """Raises ModelError."""
        folder = Path(settings.model_path)
        own = secrets.token_hex(6)  # so that nobody takes this process for an earlier one
        self.gateway_id = gateway_id = f"{settings.gateway_id}-{own}" if settings.gateway_id else own
        facts = ModelFacts.read(folder)
        max_model_len = facts.max_model_len
        self.settings = settings
        self.bus = bus
        self.clock = clock
        self.files = files
        self.batches = batches
        self.responses = responses
        self.quotas = Quotas(files, batches)
        name, *aliases = listed(settings.served_model_name) or [settings.model_name]
        self.model = ServedModel(
            name,
            max_model_len,
            settings.max_prompt_tokens or None,
            aliases=tuple(aliases),
            embedding_sizes=facts.embedding_sizes,
            defaults=defaults_of(folder, settings.generation_config),
        )
        self.created_s = int(clock.unix_s())  # unix time of the model's entry in /v1/models
        self.tokenizer = Tokenizer.from_folder(folder)
        self.telemetry = Telemetry("gateway")
        meter = self.telemetry.meter
        self.http_metrics = HttpMetrics(meter, clock)
        self.bus_lag = BusLag(bus, clock, meter)
        self.registry = registry = ExecutorRegistry(bus, settings.model_name)
        self.tuning = Tuning(bus, on_change=lambda: None)
        self.router = Router(registry, self.tuning)
        vllm = VllmRequests(self.telemetry.registry, name, max_model_len)
        self.telemetry.registry.register(VllmEngines(registry, vllm))
        online, flex = (GenerationMetrics(meter, vllm, self.http_metrics.keys, kind) for kind in KINDS)
        self.tracing = Tracing(settings.trace_endpoint, "gateway", gateway_id, settings.trace_share)
        self.tracker = OnlineTracker(bus, self.router, gateway_id, clock, online, self.tracing)
        self.flex = FlexTracker(bus, registry, f"{gateway_id}-flex", clock, flex, self.tracing)
        waits = self.tracker.room, lambda: self.tracker.num_live, self.router.wait_s
        self.admission = Admission(bus, clock, settings, *waits, settings.ttft_bound_s)
        self.keys = ApiKeys(bus, settings, clock)
        self.usage = UsageLedger(bus, clock)
        self.bodies = BodyIntake(settings.max_pending_body_bytes, settings.body_timeout_s)
        self.dashboard = DashboardHub(bus, clock, name, self.http_metrics.tally)

    @classmethod
    async def open(cls, bus: Bus, settings: GatewaySettings, clock: Clock) -> Context:
        """Raises BusError and ModelError."""
        files = FileStore(await bus.bucket(subjects.FILES_BUCKET, FileRecord), clock, await bus.objects())
        batches = BatchStore(await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord), clock)
        responses, max_age_s = ResponseStore(None), settings.response_days * 24 * 3600
        if max_age_s:
            bucket = await bus.bucket(subjects.RESPONSES_BUCKET, StoredResponse, max_age_s)
            responses = ResponseStore(bucket)
        return cls(bus, settings, clock, files, batches, responses)

    def not_ready_because(self) -> str | None:
        """Why no completion can be served now; None where one can."""
        if not self.bus.is_connected:
            return "the connection to the bus is lost"
        return None if self.registry.available() else self.registry.unavailable_because()


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context
