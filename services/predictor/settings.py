"""The predictor's settings."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class PredictorSettings(msgspec.Struct, frozen=True):
    """Fit latency models from the executors' samples and publish their coefficients."""

    nats: Annotated[str, Meta(description="URL of the NATS server")] = "nats://127.0.0.1:4222"
    log_level: Annotated[str, Meta(description="debug, info, warning or error")] = "info"
    window: Annotated[int, Meta(ge=64, description="samples kept for each profile key")] = 4096
    min_samples: Annotated[int, Meta(ge=2, description="samples before the first fit")] = 24
    prediction_limit_us: Annotated[
        float, Meta(gt=0, description="a boosted model that takes longer for one prediction is not used")
    ] = 5.0
    latency_model: Annotated[
        str, Meta(pattern="^(auto|bros)$", description="auto: linear or boosted, the better one; bros: BROS's lines")
    ] = "auto"
    refit_interval_s: Annotated[float, Meta(gt=0, description="shortest time between two rounds of fitting")] = 2.0
