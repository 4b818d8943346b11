"""Asks executors whether they are there: the bus knows at once where nobody listens, heartbeats tell seconds later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from shared.bus import Bus
from shared.cancellation import check_cancelled
from shared.errors import BusError, NobodyListensError
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo

logger = logging.getLogger(__name__)

INTERVAL_S = 0.5
MISSES = 2  # in a row: one that reconnects is back on the bus within moments


class ExecutorProbe:
    """``live`` names those that are believed to be there; ``on_gone`` is told of each that is not. One that answers
    late, or not at all, is left to its heartbeats: it may only be busy."""

    def __init__(
        self, bus: Bus, live: Callable[[], Iterable[ExecutorInfo]], on_gone: Callable[[ExecutorInfo], None]
    ) -> None:
        self._bus = bus
        self._live = live
        self._on_gone = on_gone
        self._misses: dict[tuple[str, str], int] = {}  # by executor and epoch

    async def run(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            infos = list(self._live())
            keys = [(info.executor_id, info.epoch) for info in infos]
            self._misses = {key: self._misses.get(key, 0) for key in keys}
            await asyncio.gather(*(self._ask(info) for info in infos))
            check_cancelled()

    async def _ask(self, info: ExecutorInfo) -> None:
        key = info.executor_id, info.epoch
        try:
            await self._bus.request(subjects.executor_alive(info.executor_id), None, object, timeout_s=INTERVAL_S)
            self._misses[key] = 0
        except NobodyListensError:
            self._misses[key] += 1
            if self._misses[key] >= MISSES:
                self._on_gone(info)
        except BusError as error:
            logger.debug("executor not asked", extra={"executor_id": info.executor_id, "why": str(error)})
