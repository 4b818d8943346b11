"""``python -m services.gateway``."""

import sys

from services.gateway.service import GatewayService
from services.gateway.settings import GatewaySettings
from shared.process.service import service_main

if __name__ == "__main__":
    sys.exit(service_main(GatewaySettings, "gateway", GatewayService))
