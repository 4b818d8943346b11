"""``python -m services.profiler``."""

from __future__ import annotations

import sys

from services.profiler.service import Profiler
from services.profiler.settings import ProfilerSettings
from shared.clock import SystemClock
from shared.errors import ConfigError
from shared.process.service import run_service
from shared.settings.config import load


def main() -> int:
    """Run until SIGINT or SIGTERM."""
    try:
        settings = load(ProfilerSettings, "profiler")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    clock = SystemClock()
    return run_service(settings.nats, settings.log_level, Profiler.name, lambda bus: Profiler(bus, settings, clock))


if __name__ == "__main__":
    sys.exit(main())
