"""The profiler's settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from loadgen.errors import SloError
from loadgen.report.slo import parse_slos
from services.profiler.slo.settings import SloSettings
from shared.scheduling.presets import preset_named
from shared.settings.common import LogLevel, NatsUrl


class ProfilerSettings(SloSettings, frozen=True):
    """Measure the batch shapes of each new kind of executor once, and publish latency budgets."""

    nats: NatsUrl = "nats://127.0.0.1:4222"
    log_level: LogLevel = "info"
    cache_dir: Annotated[
        str, Meta(description="profiles are kept below it; empty is SLACKWATER_CACHE, else ~/.cache/slackwater")
    ] = ""
    budget_ms: Annotated[float, Meta(ge=0, description="fixed latency budget of a step; 0 takes the target TBT")] = 0.0
    refresh: Annotated[bool, Meta(description="true measures again what is cached")] = False

    def __post_init__(self) -> None:
        if self.slo and self.budget_ms:
            raise ValueError("slo and budget_ms exclude each other: give one of them")
        try:
            slos = parse_slos(self.slo)
        except SloError as error:
            raise ValueError(str(error)) from error
        if slos and not preset_named(self.preset).uses_latency_budget:
            raise ValueError(f"preset {self.preset} has no latency budget to keep SLOs with")

    def profiles_dir(self) -> Path:
        """Where the profiles are; the folder may not exist yet."""
        root = self.cache_dir or os.environ.get("SLACKWATER_CACHE") or "~/.cache/slackwater"
        return Path(root).expanduser() / "profiles"
