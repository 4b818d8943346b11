"""The profiler's settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta


class ProfilerSettings(msgspec.Struct, frozen=True):
    """Measure the batch shapes of each new kind of executor once, and publish latency budgets."""

    nats: Annotated[str, Meta(description="URL of the NATS server")] = "nats://127.0.0.1:4222"
    log_level: Annotated[str, Meta(description="debug, info, warning or error")] = "info"
    cache_dir: Annotated[
        str, Meta(description="profiles are kept below it; empty is SLACKWATER_CACHE, else ~/.cache/slackwater")
    ] = ""
    budget_ms: Annotated[float, Meta(ge=0, description="latency budget of a step; 0 takes the target TBT")] = 0.0
    target_tbt_ms: Annotated[float, Meta(gt=0, description="time between tokens that online requests are promised")] = (
        100.0
    )
    refresh: Annotated[bool, Meta(description="true measures again what is cached")] = False

    def profiles_dir(self) -> Path:
        """Where the profiles are; the folder may not exist yet."""
        root = self.cache_dir or os.environ.get("SLACKWATER_CACHE") or "~/.cache/slackwater"
        return Path(root).expanduser() / "profiles"
