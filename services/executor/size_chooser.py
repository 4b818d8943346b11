"""The sizes of an executor's steps, by the latency model that there is."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec.structs import asdict

from services.executor.settings import ExecutorSettings
from shared.errors import BusError
from shared.latency.model import LatencyModel
from shared.protocol.executors import ExecutorInfo
from shared.scheduling.step_sizes import chosen_sizes, is_news

logger = logging.getLogger(__name__)


class SizeChooser:
    """Those that the settings give stand. The others are the first model's, and a later one's where it asks for very
    different ones: a model is fitted anew every few seconds, and each time differs somewhat."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self._settings = settings
        self._has_chosen = False
        self._changed: asyncio.Queue[ExecutorInfo] = asyncio.Queue()

    def choose(self, info: ExecutorInfo, model: LatencyModel) -> ExecutorInfo:
        """The registration with the sizes of its steps from the next one on."""
        if info.largest is None:
            return info
        sizes = self._settings.given_or(chosen_sizes(model, info.largest, info.num_kv_tokens))
        if sizes == info.sizes or (self._has_chosen and not is_news(sizes, info.sizes)):
            self._has_chosen = True
            return info
        self._has_chosen = True
        chosen = info.resized(sizes)
        self._changed.put_nowait(chosen)
        return chosen

    async def run(self, register: Callable[[], Awaitable[object]]) -> None:
        """Registers what has changed; never returns. A registration that is lost is in the next heartbeat too."""
        while True:
            info = await self._changed.get()
            logger.info("step sizes chosen", extra={"executor_id": info.executor_id, **asdict(info.sizes)})
            try:
                await register()
            except BusError as error:
                logger.warning("not registered", extra={"executor_id": info.executor_id, "why": str(error)})
