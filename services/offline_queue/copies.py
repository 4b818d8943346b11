"""As many copies of all that the bus stores as its servers can keep."""

import asyncio
import logging

from shared.bus import Bus
from shared.cancellation import check_cancelled
from shared.errors import BusError
from shared.protocol import subjects

logger = logging.getLogger(__name__)

PERIOD_S = 60.0


class StoredCopies:
    """What was made while the bus was one server gets more copies once it is a cluster."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if self._bus.replicas > 1:
                try:
                    await self._bus.raise_replicas(subjects.STORED)
                except BusError as error:
                    logger.warning("copies not raised", extra={"why": str(error)})
            check_cancelled()
            await asyncio.sleep(PERIOD_S)
