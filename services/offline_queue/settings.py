"""Settings of the offline-queue."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shared.scheduling.presets import DEFAULT_UTILITY_RATIO


class OfflineQueueSettings(msgspec.Struct, frozen=True):
    """The durable offline pool, the life of batches, and one ASYNC_SCHEDULER (HyGen Algorithm 2) per executor."""

    model_path: Annotated[str, Meta(description="folder of the prepared model")]
    nats: Annotated[str, Meta(description="URL of the NATS server")] = "nats://127.0.0.1:4222"
    log_level: Annotated[str, Meta(description="debug, info, warning or error")] = "info"
    model_name: Annotated[str, Meta(description="the name that clients use")] = "smollm2-135m-instruct"
    max_model_len: Annotated[int, Meta(ge=0, description="context limit in tokens; 0 is the model's own")] = 0
    preset: Annotated[str, Meta(description="hygen, sarathi++, hygen-star, online-only, bros, round-robin or fcfs")] = (
        "hygen"
    )
    offline_qps: Annotated[float, Meta(ge=0, description="hygen-star: offline requests/s of each executor")] = 0.0
    utility_ratio: Annotated[
        float,
        Meta(ge=0, le=1, description="share of offline requests chosen by shared prefix, the rest by age (hygen)"),
    ] = DEFAULT_UTILITY_RATIO
