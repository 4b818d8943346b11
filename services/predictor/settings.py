"""The predictor's settings."""

from typing import Annotated

import msgspec
from msgspec import Meta

from shared.settings.setting import LogLevel, NatsCa, NatsCreds, NatsReplicas, NatsUrl, choices

LATENCY_MODELS = ("auto", "roofline", "bros", "echo")  # what may be wanted


class PredictorSettings(msgspec.Struct, frozen=True):
    """Fit latency models from the executors' samples and publish their coefficients."""

    nats: NatsUrl = "nats://127.0.0.1:4222"
    nats_creds: NatsCreds = ""
    nats_ca: NatsCa = ""
    nats_replicas: NatsReplicas = "auto"
    log_level: LogLevel = "info"
    window: Annotated[int, Meta(ge=64, description="samples kept for each profile key")] = 4096
    min_samples: Annotated[int, Meta(ge=2, description="samples before the first fit")] = 24
    prediction_limit_us: Annotated[
        float, Meta(gt=0, description="a boosted or roofline model that takes longer for one prediction is not used")
    ] = 5.0
    latency_model: Annotated[
        str,
        Meta(
            description=(
                "auto: linear, boosted or roofline, the best one; roofline: OOCO's, by operator; bros: BROS's lines; "
                "echo: Echo's maxima and mean"
            ),
            extra=choices(LATENCY_MODELS),
        ),
    ] = "auto"
    refit_interval_s: Annotated[float, Meta(gt=0, description="shortest time between two rounds of fitting")] = 2.0
