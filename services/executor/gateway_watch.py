"""Requests of gateways that are gone: nobody reads their tokens, so they stop."""

from __future__ import annotations

import asyncio
import logging

from services.executor.step_loop import StepLoop
from shared.bus import Bus
from shared.cancellation import check_cancelled
from shared.errors import BusError, NoResponderError
from shared.protocol import subjects
from shared.replica.replica import Replica

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
MISSES = 2  # in a row, so that a gateway that reconnects keeps its requests


class GatewayWatch:
    """Asks each gateway that has requests here whether it is there. The bus knows at once where nobody listens."""

    def __init__(self, bus: Bus, replica: Replica, loop: StepLoop) -> None:
        self._bus = bus
        self._replica = replica
        self._loop = loop
        self._misses: dict[str, int] = {}

    async def run(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            waiting = self._replica.request_ids_of_gateways()
            self._misses = {gateway_id: self._misses.get(gateway_id, 0) for gateway_id in waiting}
            for gateway_id in waiting:
                await self._ask(gateway_id)
                check_cancelled()

    async def _ask(self, gateway_id: str) -> None:
        try:
            await self._bus.request(subjects.alive(gateway_id), None, object, timeout_s=INTERVAL_S)
            self._misses[gateway_id] = 0
        except NoResponderError:
            self._misses[gateway_id] += 1
            if self._misses[gateway_id] >= MISSES:
                self._abandon(gateway_id)
        except BusError as error:
            logger.debug("gateway not asked", extra={"gateway_id": gateway_id, "why": str(error)})

    def _abandon(self, gateway_id: str) -> None:
        request_ids = self._replica.request_ids_of_gateways().get(gateway_id, [])
        logger.warning("gateway is gone", extra={"gateway_id": gateway_id, "requests": len(request_ids)})
        self._loop.abort(request_ids)
