"""Settings that several services have: what they mean, and what they may be."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shared.scheduling.presets import PRESETS
from shared.settings.setting import choices

LOG_LEVELS = ("debug", "info", "warning", "error")

NatsUrl = Annotated[str, Meta(description="URL of the NATS server")]
LogLevel = Annotated[str, Meta(description="debug, info, warning or error", extra=choices(LOG_LEVELS))]
PresetName = Annotated[str, Meta(description="what is scheduled how", extra=choices(PRESETS))]
UtilityRatio = Annotated[
    float, Meta(ge=0, le=1, description="share of offline requests chosen by shared prefix, the rest by age (hygen)")
]
