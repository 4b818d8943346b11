"""The profiler's settings."""

import os
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from loadgen.errors import SloError
from loadgen.report.slo import parse_slos
from services.profiler.slo.settings import SloSettings
from shared.settings.setting import LogLevel, NatsUrl


class ProfilerSettings(SloSettings, frozen=True):
    """Measure the batch shapes of each new kind of executor once, and publish latency budgets."""

    nats: NatsUrl = "nats://127.0.0.1:4222"
    log_level: LogLevel = "info"
    cache_dir: Annotated[
        str, Meta(description="profiles are kept below it; empty is SLACKWATER_CACHE, else ~/.cache/slackwater")
    ] = ""
    refresh: Annotated[bool, Meta(description="true measures again what is cached")] = False

    def __post_init__(self) -> None:
        try:
            parse_slos(self.slo)
        except SloError as error:
            raise ValueError(str(error)) from error

    def profiles_dir(self) -> Path:
        """Where the profiles are; the folder may not exist yet."""
        root = self.cache_dir or os.environ.get("SLACKWATER_CACHE") or "~/.cache/slackwater"
        return Path(root).expanduser() / "profiles"
