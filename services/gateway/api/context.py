"""What the HTTP endpoints share."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI, Request

from services.gateway.access.admission import Admission
from services.gateway.access.api_keys import ApiKeys
from services.gateway.dashboard.hub import DashboardHub
from services.gateway.http.body_intake import BodyIntake
from services.gateway.live.flex_tracker import FlexTracker
from services.gateway.live.metrics import HttpMetrics
from services.gateway.live.registry import ExecutorRegistry
from services.gateway.live.tracker import RequestTracker
from services.gateway.store.batches import BatchStore
from services.gateway.store.files import FileStore
from shared.bus import Bus
from shared.clock import Clock
from shared.openai.completions.requests import ServedModel
from shared.process.telemetry import Telemetry
from shared.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Context:
    """One per process."""

    bus: Bus
    clock: Clock
    model: ServedModel
    created_s: int  # unix time of the model's entry in /v1/models
    tokenizer: Tokenizer
    registry: ExecutorRegistry
    tracker: RequestTracker
    flex: FlexTracker
    admission: Admission
    keys: ApiKeys
    files: FileStore
    batches: BatchStore
    telemetry: Telemetry
    http_metrics: HttpMetrics
    bodies: BodyIntake
    dashboard: DashboardHub
    max_body_bytes: int  # of a completion


def set_context(app: FastAPI, context: Context) -> None:
    app.state.context = context


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context
