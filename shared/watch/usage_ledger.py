"""What a process has counted of the tokens of API keys, written to the bus at intervals, and what all have counted."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable

from shared.bus import Bucket, Bus, Entry
from shared.clock import Clock
from shared.errors import BusError
from shared.protocol import subjects
from shared.protocol.access.key_usage import KeyUsage, UsagePlace, day_of, month_of
from shared.watch.key_totals import KeyTotals

logger = logging.getLogger(__name__)

STOP_S = 1.0  # of a process that is killed soon
PERIOD_S = 5.0  # so much of what a killed process counted is missing, and so late others know of it
KEEP_OWN_S = 2 * 24 * 3600.0  # a day is over: nothing is added to it any more


async def stored_usages(bucket: Bucket[KeyUsage]) -> list[tuple[UsagePlace, KeyUsage]]:
    """In the order of days and names. Raises BusError."""
    entries = [(UsagePlace.of(entry.key), entry.value) for entry in await bucket.entries()]
    return sorted((place, usage) for place, usage in entries if place is not None and usage is not None)


class UsageLedger:
    """Nothing is written where it is counted. Each source writes its own totals and nobody else's, so that it may write
    them again after an error, and several processes add up. While the bus is away, it counts on."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._own: dict[UsagePlace, KeyUsage] = {}  # newer than what comes back of it
        self._unwritten: dict[UsagePlace, None] = {}
        self._forgotten_on = ""  # day on which old ones were last
        self._writing = asyncio.Lock()  # who waits for what is unwritten waits for what is being written
        self._bucket: Bucket[KeyUsage]
        self._entries: AsyncIterator[Entry[KeyUsage] | None]
        self.totals = KeyTotals()

    async def start(self) -> None:
        """Know what was counted until now. Raises BusError."""
        self._bucket = await self._bus.bucket(subjects.KEY_USAGE_BUCKET, KeyUsage)
        self._entries = self._bucket.watch()
        while (entry := await anext(self._entries)) is not None:
            self._take(entry)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            while True:
                await asyncio.sleep(PERIOD_S)
                await self.try_flush()
                self._forget_old()

    def get(self, place: UsagePlace) -> KeyUsage:
        """What its source has counted."""
        return self._own.get(place, self.totals.get(place))

    def put(self, place: UsagePlace, usage: KeyUsage) -> None:
        """A place of one of this process's own sources has so much by now; it is written later."""
        if usage != self.get(place):
            self._own[place] = usage
            self._unwritten[place] = None
            self.totals.take(place, usage)

    async def stored(self) -> list[tuple[UsagePlace, KeyUsage]]:
        """All that the bus has, of all days, with what this process has counted since. Raises BusError."""
        await self.flush()
        return await stored_usages(self._bucket)

    async def forget(self, before_day: str) -> int:
        """What is stored of the days before; how much it was. Nobody waits to hear of that, so that nothing is kept of
        it. Raises BusError."""
        entries = ((UsagePlace.of(entry.key), entry) for entry in await self._bucket.entries())
        old = {entry.key: entry.revision for place, entry in entries if place is not None and place.day < before_day}
        await self._bucket.forget(old)
        return len(old)

    async def flush(self) -> None:
        """Write what is not written yet. Raises BusError; then it is tried again later."""
        async with self._writing:
            while self._unwritten:
                place = next(iter(self._unwritten))
                del self._unwritten[place]  # before the write, in which more may be counted
                try:
                    await self._bucket.put(place.key, self._own[place])
                except (BusError, asyncio.CancelledError):
                    self._unwritten[place] = None
                    raise

    async def try_flush(self) -> None:
        """As far as the bus is there."""
        await self._tried(self.flush())

    async def stop(self) -> None:
        """Write what is not written yet, for no longer than STOP_S."""
        await self._tried(self._bus.at_the_end(self.flush, STOP_S))

    async def _tried(self, flushing: Awaitable[None]) -> None:
        try:
            await flushing
        except BusError as error:
            logger.warning("usage of keys not written yet", extra={"left": len(self._unwritten), "why": str(error)})

    async def _follow(self) -> None:
        async for entry in self._entries:
            if entry is not None:
                self._take(entry)

    def _take(self, entry: Entry[KeyUsage]) -> None:
        place = UsagePlace.of(entry.key)
        if entry.value is not None and place is not None and place not in self._own and self._counts(place):
            self.totals.take(place, entry.value)

    def _counts(self, place: UsagePlace) -> bool:
        """For a budget of today."""
        return month_of(place.day) >= month_of(day_of(self._clock.unix_s()))

    def _forget_old(self) -> None:
        """Once a day: of a month there may be a hundred thousand batches."""
        now_s = self._clock.unix_s()
        today = day_of(now_s)
        if today == self._forgotten_on:
            return
        self._forgotten_on = today
        self.totals.forget_before(month_of(today))
        oldest = day_of(now_s - KEEP_OWN_S)
        self._own = {
            place: usage for place, usage in self._own.items() if place.day >= oldest or place in self._unwritten
        }
