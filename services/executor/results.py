"""Results of offline requests, until they are durable."""

import asyncio
import contextlib
import logging
import uuid

import msgspec

from shared.bus import Bus
from shared.cancellation import check_cancelled
from shared.errors import BusError, TooLargeForBusError
from shared.protocol import subjects
from shared.protocol.codec import encode
from shared.protocol.offline.requests import OfflineFailure, OfflineResult
from shared.protocol.sampling import FinishReason
from shared.protocol.subjects import ModelSubjects

logger = logging.getLogger(__name__)

RETRY_S = 0.5
CONCURRENCY = 32

MAX_BYTES = 64 * 1024**2  # that wait; beyond it the executor is to take no more offline work

_Message = tuple[str, bytes]  # encoded, with its subject


class ResultStore:
    """Stores each result in the results stream, trying until the bus confirms it; the stream refuses a second one for a
    request, so that is safe. One that is too large for the bus is stored as failed. What waits here is lost with the
    process; its requests have no result and run again."""

    def __init__(self, bus: Bus, of_model: ModelSubjects) -> None:
        """``of_model``: of the requests."""
        self._bus = bus
        self._subjects = of_model
        self._waiting: asyncio.Queue[_Message] = asyncio.Queue()  # bounded by those who ask ``is_full``
        self._num_bytes = 0  # of all that are not stored

    @property
    def is_full(self) -> bool:
        """The bus takes results slower than they come, or none."""
        return self._num_bytes >= MAX_BYTES

    def put(self, result: OfflineResult) -> None:
        """Returns at once."""
        self._put(self._subjects.result(result.request_id), result)

    def put_failure(self, failure: OfflineFailure) -> None:
        """Returns at once. Each call is one failure, however often it is stored."""
        self._put(self._subjects.failure(failure.request_id, uuid.uuid4().hex), failure)

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(self._store_all())

    async def drain(self, timeout_s: float) -> None:
        """After ``run`` was cancelled: store what is left, for at most ``timeout_s``."""
        storing = asyncio.create_task(self.run())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._waiting.join(), timeout_s)
        storing.cancel()

    def _put(self, subject: str, result: OfflineResult | OfflineFailure) -> None:
        encoded = encode(result)
        self._num_bytes += len(encoded)
        self._waiting.put_nowait((subject, encoded))

    async def _store_all(self) -> None:
        while True:
            message = await self._waiting.get()
            try:
                await self._store(*message)
                self._num_bytes -= len(message[1])
            except asyncio.CancelledError:
                self._waiting.put_nowait(message)
                raise
            finally:
                self._waiting.task_done()
            check_cancelled()

    async def _store(self, subject: str, result: bytes) -> None:
        request_id, level = subjects.request_of(subject), logging.WARNING  # once: a bus may be full for days
        while True:
            generation = self._bus.reconnects
            try:
                if not await self._bus.store(subject, msgspec.Raw(result)):
                    logger.info("result was there already", extra={"request_id": request_id})
                return
            except TooLargeForBusError:
                why = f"the result has {len(result)} bytes, which is more than the bus takes in one message"
                logger.error("result not stored", extra={"request_id": request_id, "why": why})
                result = encode(OfflineResult(request_id, [], FinishReason.ERROR, error=why))
            except BusError as error:
                logger.log(level, "result not stored yet", extra={"request_id": request_id, "why": str(error)})
                level = logging.DEBUG
                await self._bus.wait_reconnected(generation, RETRY_S)
