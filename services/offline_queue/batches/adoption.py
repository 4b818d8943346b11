"""Open batches of a version that had one model: their records name none, and nor do the subjects of what is stored."""

import logging

from msgspec import Raw
from msgspec.structs import replace

from services.offline_queue.batches.spending import places_of
from services.offline_queue.batches.tools import BatchTools
from shared.protocol import subjects
from shared.protocol.access.key_usage import KeyUsage
from shared.protocol.offline.batches import BatchRecord

logger = logging.getLogger(__name__)

GROUP_MESSAGES = 64


class Adoption:
    """Such a batch becomes this model's where the model has the name that the batch was read in for, or where it was
    not read in yet. Repeating a step that was cut short changes nothing."""

    def __init__(self, tools: BatchTools, model_name: str) -> None:
        """``model_name``: the model's in the stack."""
        self._tools = tools
        self._model_name = model_name

    async def adopt(self, record: BatchRecord) -> BatchRecord:
        """The record as it is then; the same where there is nothing to do. Raises BusError."""
        if record.model_name:
            return record
        model, ids = self._tools.model, {"batch_id": record.id, "model": record.model}
        if record.model not in (None, model.name, *model.aliases):
            logger.warning("a batch waits for a model that is not served by this name here", extra=ids)
            return record
        if record.model is not None:
            await self._move(record.id)
        await self._forget_usage(record)

        def taken(found: BatchRecord) -> BatchRecord:
            return found if found.model_name else replace(found, model_name=self._model_name)

        logger.info("a batch of an earlier version is taken over", extra=ids)
        return await self._tools.batches.edit(record.id, taken)

    async def _forget_usage(self, record: BatchRecord) -> None:
        """It is counted again, for the model."""
        usages = await self._tools.bus.bucket(subjects.KEY_USAGE_BUCKET, KeyUsage)
        for place in places_of(record, ""):
            await usages.delete(place.key)

    async def _move(self, batch_id: str) -> None:
        """All that is stored of it, in its order."""
        requests, results = subjects.REQUESTS_STREAM, subjects.RESULTS_STREAM
        places = (
            (requests, f"{subjects.PREFIX}.requests.{batch_id}.*"),
            (results, f"{subjects.PREFIX}.results.{batch_id}.*"),
            (results, f"{subjects.PREFIX}.results.{batch_id}.*.*"),
        )
        bus, to = self._tools.bus, {requests: self._tools.of_model.request, results: self._tools.of_model.result}
        for stream, subject in places:
            async for stored in bus.read_raw(stream, subject, GROUP_MESSAGES):
                tail = stored.subject.split(".", 2)[2]
                await bus.store(to[stream](tail), Raw(stored.data))
            await bus.purge(stream, subject)
