"""How long the bus takes to answer this gateway."""

import asyncio
import logging

from opentelemetry.metrics import Meter

from services.gateway.metrics.tables import BUS_ROUND_TRIP
from shared.bus import Bus
from shared.cancellation import check_cancelled
from shared.clock import Clock
from shared.errors import BusError

logger = logging.getLogger(__name__)

PERIOD_S = 2.0


class BusLag:
    """Asks the server that this process is connected to, and records what its answer took: what waits here to be sent,
    the way there and back, and the wait for this process's own turn. No clock but this machine's is in it."""

    def __init__(self, bus: Bus, clock: Clock, meter: Meter) -> None:
        self._bus = bus
        self._clock = clock
        self._took = BUS_ROUND_TRIP.histogram(meter)

    async def run(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(PERIOD_S)
            took_s = await self.ask()
            if took_s is not None:
                self._took.record(took_s)
            check_cancelled()

    async def ask(self) -> float | None:
        """None where the connection was lost meanwhile, which is counted elsewhere. A server that has not answered in
        time has taken that time."""
        generation, began_s = self._bus.reconnects, self._clock.monotonic_s()
        if not self._bus.is_connected:
            return None
        try:
            await self._bus.flush()
        except BusError as error:
            logger.debug("the bus did not answer", extra={"why": str(error)})
            if not self._bus.is_connected or self._bus.reconnects != generation:
                return None
        return self._clock.monotonic_s() - began_s
