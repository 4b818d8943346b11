"""python -m services.gateway"""

from __future__ import annotations

import sys

from services.gateway.service import GatewayService
from services.gateway.settings import GatewaySettings
from shared.clock import SystemClock
from shared.errors import ConfigError
from shared.process.service import run_service
from shared.settings import config


def main() -> int:
    try:
        settings = config.load(GatewaySettings, "gateway")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return run_service(
        settings.nats, settings.log_level, "gateway", lambda bus: GatewayService(bus, settings, SystemClock())
    )


if __name__ == "__main__":
    sys.exit(main())
