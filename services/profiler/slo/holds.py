"""Budgets that live searches have to themselves, and what becomes of them where a search is gone."""

import asyncio
import logging
from contextlib import suppress

from shared.bus import Bucket, Bus
from shared.cancellation import check_cancelled
from shared.errors import BusError, ConflictError, NotFoundOnBusError
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource

logger = logging.getLogger(__name__)

RENEW_S = 5.0  # between two words of a search
MAX_MISSED = 6  # of them; periods are counted, so that a process that stood still takes nobody for gone


class LiveHolds:
    """A search that is killed puts nothing back: it is done here, once nothing has been heard of it for a while."""

    def __init__(self, bus: Bus, budgets: Bucket[BudgetRecord]) -> None:
        self._bus = bus
        self._budgets = budgets
        self._missed: dict[str, int] = {}  # words of a search, by profile key

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._budgets.follow(self.on_budget))
            while True:
                await asyncio.sleep(RENEW_S)
                check_cancelled()
                if self._bus.is_connected:
                    await self.end_period()

    def on_budget(self, profile_key: str, budget: BudgetRecord | None) -> None:
        """Somebody has set it, or a search is still there."""
        if budget is not None and budget.source is BudgetSource.PROFILING:
            self._missed[profile_key] = 0
        else:
            self._missed.pop(profile_key, None)

    async def end_period(self) -> None:
        """Without a word in it one more is missed."""
        for profile_key in list(self._missed):
            self._missed[profile_key] += 1
            if self._missed[profile_key] > MAX_MISSED:
                try:
                    await self._put_back(profile_key)
                except BusError as error:
                    logger.warning("budget not put back", extra={"profile_key": profile_key, "why": str(error)})

    async def _put_back(self, profile_key: str) -> None:
        with suppress(NotFoundOnBusError, ConflictError):  # somebody has set it meanwhile
            held = await self._budgets.get(profile_key)
            if held.value is None or held.value.source is not BudgetSource.PROFILING:
                return
            if held.value.before is None:
                await self._budgets.delete(profile_key, held.revision)
            else:
                await self._budgets.update(profile_key, held.value.before, held.revision)
            logger.warning("budget put back: its live search is gone", extra={"profile_key": profile_key})
