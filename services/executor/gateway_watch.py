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


async def watch_gateways(bus: Bus, replica: Replica, loop: StepLoop) -> None:
    """Asks each gateway that has requests here whether it is there. The bus knows at once where nobody listens. Never
    returns."""
    misses: dict[str, int] = {}
    while True:
        await asyncio.sleep(INTERVAL_S)
        waiting = replica.request_ids_of_gateways()
        misses = {gateway_id: misses.get(gateway_id, 0) for gateway_id in waiting}
        for gateway_id in waiting:
            misses[gateway_id] = misses[gateway_id] + 1 if await _is_gone(bus, gateway_id) else 0
            if misses[gateway_id] >= MISSES:
                request_ids = replica.request_ids_of_gateways().get(gateway_id, [])
                logger.warning("gateway is gone", extra={"gateway_id": gateway_id, "requests": len(request_ids)})
                loop.abort(request_ids)
            check_cancelled()


async def _is_gone(bus: Bus, gateway_id: str) -> bool:
    try:
        await bus.request(subjects.alive(gateway_id), None, object, timeout_s=INTERVAL_S)
    except NoResponderError:
        return True
    except BusError as error:
        logger.debug("gateway not asked", extra={"gateway_id": gateway_id, "why": str(error)})
    return False
