"""An executor's membership in a pool: nothing of it is there until it is told to be strict or relaxed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from services.executor.handover.desk import HandoverDesk
from services.executor.handover.link import KVLink
from services.executor.handover.links import make_link
from services.executor.handover.peers import place_of
from services.executor.settings import ExecutorSettings
from shared.errors import LinkError
from shared.latency.histogram import LatencyHistogram
from shared.protocol.executors import ExecutorInfo
from shared.replica.engine import Engine
from shared.scheduling.placement.role import Role

logger = logging.getLogger(__name__)


class PoolMember:
    """``join`` whenever the role may have changed; then as the desk, which is made at the first."""

    def __init__(
        self,
        info: Callable[[], ExecutorInfo],
        engine: Engine,
        settings: ExecutorSettings,
        make_desk: Callable[[KVLink], HandoverDesk],
    ) -> None:
        """``info``: the registration as it is now."""
        self._info = info
        self._engine = engine
        self._settings = settings
        self._make_desk = make_desk
        self._desk: HandoverDesk | None = None
        self._has_joined = asyncio.Event()

    @property
    def acting(self) -> Role:
        """What the executor acts as."""
        return Role.MIXED if self._desk is None else self._desk.acting

    async def join(self) -> bool:
        """Be reached by others where the role is that of a pool. False where nobody can be: it has no link."""
        info = self._info()
        if info.role is Role.MIXED or self._desk is not None:
            return True
        event = {"executor_id": info.executor_id, "role": info.role}
        if not info.kv_link:
            logger.warning("of a pool, but requests cannot move from or to it", extra=event)
            return False
        try:
            link = await make_link(self._engine, place_of(info), self._settings)
        except LinkError as error:
            logger.warning("of a pool, but requests cannot move from or to it", extra=event | {"why": str(error)})
            return False
        self._desk = self._make_desk(link)
        await self._desk.start()
        self._has_joined.set()
        return True

    async def run(self) -> None:
        """Until cancelled. Raises EngineLostError where its KV is gone."""
        await self._has_joined.wait()
        if self._desk is not None:
            await self._desk.run()

    async def settle(self) -> None:
        """See ``HandoverDesk.settle``."""
        if self._desk is not None:
            await self._desk.settle()

    async def close(self) -> None:
        """See ``HandoverDesk.close``."""
        if self._desk is not None:
            await self._desk.close()

    def take_handover_ms(self) -> LatencyHistogram:
        """See ``HandoverDesk.take_handover_ms``."""
        return LatencyHistogram() if self._desk is None else self._desk.take_handover_ms()
