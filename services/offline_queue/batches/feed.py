"""The part of a batch that waits in memory; the rest waits in the stream."""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from services.offline_queue.batches.lines import line_of
from services.offline_queue.batches.progress import BatchProgress
from services.offline_queue.batches.tools import BatchTools
from shared.protocol import subjects
from shared.protocol.codec import decode
from shared.protocol.offline.requests import OfflineRequest

GROUP_REQUESTS = 64


class BatchFeed:
    """Hands stored requests to the pool in the order of their lines, until the batch has used its room there, and more
    once half of that is free again: whatever a batch's size, its part in memory is the room and one request."""

    def __init__(self, tools: BatchTools, progress: BatchProgress, give_up: Callable[[int, str], None]) -> None:
        """``give_up``: told of a line that can never run, and why."""
        self._tools = tools
        self._progress = progress
        self._give_up = give_up
        self._next_sequence = 1
        self.is_exhausted = False  # every stored request was read

    @property
    def is_low(self) -> bool:
        """There is more in the stream, and room for it."""
        return not self.is_exhausted and 2 * self._progress.held_bytes <= self._room

    @property
    def _room(self) -> int:
        """Bytes, as ``BatchProgress.held_bytes`` counts them; it may change at any time."""
        return self._tools.room.of(self._progress.held_bytes)

    async def fill(self, is_cancelled: Callable[[], bool], turn: asyncio.Event | None = None) -> None:
        """Up to the room, where less than half of it is in use; the next call goes on from there. ``turn``: what is
        read before waits for it, outside the pool. Raises BusError; then what was read last is not in the pool, and
        only a new feed, with new progress, hands all of it over."""
        if not self.is_low:
            return
        group: list[OfflineRequest] = []
        subject, start = self._tools.of_model.batch_requests(self._progress.batch_id), self._next_sequence
        stored_requests = self._tools.bus.read_raw(subjects.REQUESTS_STREAM, subject, GROUP_REQUESTS, start)
        async with contextlib.aclosing(stored_requests):
            async for stored in stored_requests:
                self._next_sequence = stored.sequence + 1
                try:
                    request = decode(stored.data, OfflineRequest)
                except msgspec.DecodeError as error:
                    self._give_up(line_of(stored.subject), f"the stored request cannot be read: {error}")
                    continue
                if self._progress.add_request(request.line, stored.sequence):
                    group.append(request)
                is_full = self._progress.held_bytes >= self._room
                if is_full or len(group) == GROUP_REQUESTS:
                    await self._hand_over(group, is_cancelled, turn)
                    group = []
                if is_full or is_cancelled():
                    return
        self.is_exhausted = True
        await self._hand_over(group, is_cancelled, turn)

    def start_over(self) -> None:
        """Requests were stored again; those that the pool has are not handed over twice."""
        self._next_sequence, self.is_exhausted = 1, False

    async def _hand_over(
        self, group: list[OfflineRequest], is_cancelled: Callable[[], bool], turn: asyncio.Event | None
    ) -> None:
        """A result may have come since the request was read, or a cancellation."""
        if turn is not None:
            await turn.wait()
        group = [request for request in group if self._progress.is_open(request.line)]
        if group and not is_cancelled():
            self._tools.pool.add(group)
        for request in group:
            if num_failures := self._progress.num_failures(request.line):
                self._tools.pool.retry(request.request.request_id, num_failures)
