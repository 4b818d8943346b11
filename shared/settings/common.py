"""Settings that several services have: what they mean, and what they may be."""

from typing import Annotated

from msgspec import Meta

from shared.settings.setting import choices

LOG_LEVELS = ("debug", "info", "warning", "error")

NatsUrl = Annotated[str, Meta(description="URL of the NATS server")]
LogLevel = Annotated[str, Meta(description="debug, info, warning or error", extra=choices(LOG_LEVELS))]
