"""Batches of models that the stack has no more."""

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace

from services.offline_queue.batches import records as batch_records
from services.offline_queue.batches.life import BatchLife
from services.offline_queue.batches.tools import BatchTools
from shared.bus.lease import is_held
from shared.clock import Deadline
from shared.protocol import subjects
from shared.protocol.offline.batches import OPEN_STATUSES, BatchRecord
from shared.protocol.services import queue_lease

logger = logging.getLogger(__name__)

PERIOD_S = 60.0  # between two looks for such


class UnservedBatches:
    """Nobody runs them, and a result needs its model's tokenizer to be written. One that is cancelled, or whose window
    is over, comes to its end here, where no offline-queue is at work for its model: a line whose result is in no file
    has not run. Any other waits for its model."""

    def __init__(self, tools: BatchTools, model_name: str, other_models: Collection[str]) -> None:
        """Names in the stack. One of its offline-queues does it: that of the first by name."""
        self._tools = tools
        self._served = frozenset({model_name, *other_models})
        self._is_ours = model_name == min(self._served)
        self._windows: dict[str, Deadline] = {}  # by batch

    async def ending(self, records: Iterable[BatchRecord]) -> list[BatchLife]:
        """Of these open batches of other models, lives of those that are to end. Raises BusError."""
        waiting = [each for each in records if self._is_ours and each.model_name not in {"", *self._served}]
        known = self._windows
        self._windows = {each.id: known.get(each.id) or self._window(each) for each in waiting}
        over = [each for each in waiting if self._is_over(each)]
        return [await self._begin_to_end(each) for each in over if not await self._is_served(each)]

    def _window(self, record: BatchRecord) -> Deadline:
        return Deadline(self._tools.clock, record.expires_at)

    def _is_over(self, record: BatchRecord) -> bool:
        """Also one whose end is written, and of which something is left."""
        is_at_end = record.status == "cancelling" or record.status not in OPEN_STATUSES
        return is_at_end or self._windows[record.id].left_s() <= 0

    async def _is_served(self, record: BatchRecord) -> bool:
        """By a stack of another configuration on this bus."""
        lease = queue_lease(subjects.of_model(record.model_name).model)
        return await is_held(self._tools.bus, lease)

    async def _begin_to_end(self, record: BatchRecord) -> BatchLife:
        ids = {"batch_id": record.id, "model_name": record.model_name}
        logger.warning("a batch of a model that is not served comes to its end", extra=ids)
        tools = replace(self._tools, of_model=subjects.of_model(record.model_name))
        for stream, subject in tools.stored(record.id):
            await tools.bus.purge(stream, subject)
        if record.status == "validating":
            change = batch_records.expired(int(tools.clock.unix_s()))
            record = await tools.batches.edit(record.id, change)
        return BatchLife(tools, record)
