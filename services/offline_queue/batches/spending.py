"""What batches use of the budgets of API keys."""

import asyncio
import logging

from shared.bus import Bus
from shared.cancellation import check_cancelled
from shared.clock import Clock
from shared.errors import BusError
from shared.protocol import subjects
from shared.protocol.access.api_keys import ApiKeyRecord
from shared.protocol.access.key_usage import KeyUsage, UsagePlace, day_of, key_name_of
from shared.protocol.offline.batches import BatchRecord
from shared.protocol.subjects import model_token
from shared.watch.key_totals import SpentBudget
from shared.watch.usage_ledger import UsageLedger

logger = logging.getLogger(__name__)

DAY_S = 24 * 3600.0
KEEP_S = 400 * DAY_S


class BatchSpending:
    """Each batch is a source of its own, whose totals its record holds: told again, they change nothing."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._keys: dict[str, ApiKeyRecord] = {}
        self._noted: dict[str, dict[UsagePlace, KeyUsage]] = {}  # by batch
        self.ledger = UsageLedger(bus, clock)

    async def start(self) -> None:
        """Know all keys, and what they have used. Raises BusError."""
        for entry in await (await self._bus.bucket(subjects.API_KEYS_BUCKET, ApiKeyRecord)).entries():
            self._on_key(entry.key, entry.value)
        await self.ledger.start()

    async def run(self) -> None:
        """Until cancelled."""
        keys = await self._bus.bucket(subjects.API_KEYS_BUCKET, ApiKeyRecord)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.ledger.run())
            tasks.create_task(keys.follow(self._on_key))
            tasks.create_task(self._forget_old())

    def note(self, record: BatchRecord) -> None:
        """The batch's record is this by now; it is written with the others, but for what the ledger was told before and
        has forgotten, since it counts for no budget any more."""
        noted = self._noted.pop(record.id, {})
        places = places_of(record, model_token(record.adapter or record.model_name))
        for place, usage in places.items():
            if noted.get(place) != usage or self.ledger.get(place) != KeyUsage():
                self.ledger.put(place, usage)
        if places and not record.cleared:
            self._noted[record.id] = places

    def spent_budget(self, client_id: str) -> SpentBudget | None:
        """Of the key of this client, where one is used up. A key that has gone leaves its batches as they are."""
        key = self.key_of(client_id)
        return None if key is None else self.ledger.totals.spent_budget(key, self._clock.unix_s())

    def key_of(self, client_id: str) -> ApiKeyRecord | None:
        """Of this client; None where it has none, or one that has gone."""
        return self._keys.get(key_name_of(client_id) or "")

    async def _forget_old(self) -> None:
        """Of all keys, whoever counted it; once a day."""
        while True:
            try:
                forgotten = await self.ledger.forget(day_of(self._clock.unix_s() - KEEP_S))
                if forgotten:
                    logger.info("usage of keys forgotten", extra={"records": forgotten})
            except BusError as error:
                logger.warning("old usage of keys not forgotten", extra={"why": str(error)})
            check_cancelled()
            await asyncio.sleep(DAY_S)

    def _on_key(self, name: str, key: ApiKeyRecord | None) -> None:
        if key is None:
            self._keys.pop(name, None)
        else:
            self._keys[name] = key


def places_of(record: BatchRecord, model: str) -> dict[UsagePlace, KeyUsage]:
    """What the batch has used, where it is a key's. ``model``: the token of its name."""
    name = key_name_of(record.client_id)
    used = record.usage_by_day if name is not None else {}
    return {UsagePlace(day, name or "", record.id, model): usage for day, usage in used.items()}
