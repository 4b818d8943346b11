"""``python -m services.predictor``."""

from __future__ import annotations

import sys

from services.predictor.service import Predictor
from services.predictor.settings import PredictorSettings
from shared.clock import SystemClock
from shared.errors import ConfigError
from shared.process.service import run_service
from shared.settings.config import load


def main() -> int:
    """Run until SIGINT or SIGTERM."""
    try:
        settings = load(PredictorSettings, "predictor")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    clock = SystemClock()
    return run_service(settings.nats, settings.log_level, Predictor.name, lambda bus: Predictor(bus, settings, clock))


if __name__ == "__main__":
    sys.exit(main())
