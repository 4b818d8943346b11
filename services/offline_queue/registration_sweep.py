"""Registrations and leases of executors that ended without a sign-off and never came back, as those of containers."""

import asyncio
import contextlib
import logging
from typing import Any

from services.offline_queue.batches.file_sweep import FORGET_AGE_S
from shared.bus import Bucket, Bus
from shared.bus.lease import forget_unless_held
from shared.cancellation import check_cancelled
from shared.clock import Clock
from shared.errors import BusError, ConflictError
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.services import LeaseHolder

logger = logging.getLogger(__name__)

PERIOD_S = 60.0
MAX_SILENT_PERIODS = 60  # without a heartbeat, while this process listened


class RegistrationSweep:
    """Deletes them, and with that whoever follows the registrations lets go of what it keeps for each; and a day later
    what the bus keeps of the deletion, as that of an executor that signed off. Periods are counted, so that neither a
    clock that is set nor a process that was stopped makes anybody look silent."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._silent_periods: dict[str, int] = {}  # by executor
        self._heard: dict[str, None] = {}  # in this period
        self._deletions: list[tuple[Bucket[Any], dict[str, int]]] = []  # old ones, found a period before

    def on_heartbeat(self, executor_id: str) -> None:
        self._heard[executor_id] = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            check_cancelled()
            try:
                await self.end_period()
            except BusError as error:
                logger.warning("registrations not swept", extra={"why": str(error)})

    async def end_period(self) -> None:
        """Raises BusError."""
        executors = await self._bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
        leases = await self._bus.bucket(subjects.LEASES_BUCKET, LeaseHolder)
        entries = await executors.entries()
        counted = {entry.key: self._silent_periods.get(entry.key, 0) + 1 for entry in entries}
        self._silent_periods = {key: 0 if key in self._heard else periods for key, periods in counted.items()}
        self._heard.clear()
        for entry in entries:
            if self._silent_periods[entry.key] > MAX_SILENT_PERIODS:
                with contextlib.suppress(ConflictError):  # it came back at this moment
                    await executors.delete(entry.key, entry.revision)
                    logger.warning("executor forgotten: it is silent", extra={"executor_id": entry.key})
                    await forget_unless_held(self._bus, entry.key)
        for bucket, deletions in self._deletions:
            await bucket.forget(deletions)
        before_s = self._clock.unix_s() - FORGET_AGE_S
        self._deletions = [(bucket, await bucket.deletions(before_s)) for bucket in (executors, leases)]
