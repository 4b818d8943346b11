"""What one gateway consists of, for the HTTP endpoints and for the process that runs it."""

from __future__ import annotations

import secrets

from fastapi import Request

from services.gateway.access.api_keys import ApiKeys
from services.gateway.access.quotas import Quotas
from services.gateway.batch_keys import BatchKeys
from services.gateway.bus_lag import BusLag
from services.gateway.dashboard.hub import DashboardHub
from services.gateway.http.answers import HttpMetrics
from services.gateway.http.bodies import BodyIntake
from services.gateway.live.metrics import KINDS, GenerationMetrics
from services.gateway.live.vllm_engines import VllmEngines
from services.gateway.live.vllm_requests import VllmRequests
from services.gateway.models import GatewayModel, Models, Surroundings
from services.gateway.prepared_models import read_models
from services.gateway.response_store import ResponseStore
from services.gateway.settings import GatewaySettings
from services.gateway.store import BatchStore, FileStore
from shared.bus import Bus
from shared.clock import Clock
from shared.process.telemetry import Telemetry
from shared.process.tracing import Tracing
from shared.protocol import subjects
from shared.protocol.offline.batches import BatchKey, BatchRecord, FileRecord
from shared.protocol.responses import StoredResponse
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
        own = secrets.token_hex(6)  # so that nobody takes this process for an earlier one
        self.gateway_id = gateway_id = f"{settings.gateway_id}-{own}" if settings.gateway_id else own
        prepared = read_models(settings)
        self.settings = settings
        self.bus = bus
        self.clock = clock
        self.files = files
        self.batches = batches
        self.responses = responses
        self.quotas = Quotas(files, batches)
        self.created_s = int(clock.unix_s())  # unix time of the models' entries in /v1/models
        self.telemetry = Telemetry("gateway")
        meter = self.telemetry.meter
        self.http_metrics = HttpMetrics(meter, clock)
        self.bus_lag = BusLag(bus, clock, meter)
        self.tuning = Tuning(bus, on_change=lambda: None)
        self.tracing = Tracing(settings.trace_endpoint, "gateway", gateway_id, settings.trace_share)
        models = {name: each.served.name for each in prepared for name in each.served.names}
        vllm = VllmRequests(self.telemetry.registry, max(each.served.max_model_len for each in prepared), models)
        online, flex = (GenerationMetrics(meter, vllm, self.http_metrics.keys, kind) for kind in KINDS)
        around = Surroundings(
            bus, settings, clock, self.tuning, self.tracing, online, flex, lambda: self.models.num_live()
        )
        self.models = Models(
            [GatewayModel(each, around, f"{gateway_id}-{index}") for index, each in enumerate(prepared)]
        )
        registries = {each.served.name: each.registry for each in self.models}
        self.telemetry.registry.register(VllmEngines(registries, vllm))
        self.keys = ApiKeys(bus, settings, clock)
        self.usage = UsageLedger(bus, clock)
        self.bodies = BodyIntake(settings.max_pending_body_bytes, settings.body_timeout_s)
        names = {each.name: each.served.name for each in self.models}
        self.dashboard = DashboardHub(bus, clock, names, self.http_metrics.tally)

    @classmethod
    async def open(cls, bus: Bus, settings: GatewaySettings, clock: Clock) -> Context:
        """Raises BusError and ModelError."""
        files = FileStore(await bus.bucket(subjects.FILES_BUCKET, FileRecord), clock, await bus.objects())
        keys = BatchKeys(await bus.bucket(subjects.BATCH_KEYS_BUCKET, BatchKey), clock)
        batches = BatchStore(await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord), clock, keys)
        responses, max_age_s = ResponseStore(None), settings.response_days * 24 * 3600
        if max_age_s:
            bucket = await bus.bucket(subjects.RESPONSES_BUCKET, StoredResponse, max_age_s)
            responses = ResponseStore(bucket)
        return cls(bus, settings, clock, files, batches, responses)

    def not_ready_because(self) -> str | None:
        """Why no completion can be served now; None where one can."""
        if not self.bus.is_connected:
            return "the connection to the bus is lost"
        return self.models.not_ready_because()


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context
