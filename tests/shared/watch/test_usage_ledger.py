"""Ledgers of several processes over one bus."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import count

import pytest

from shared.bus import Bucket, Bus
from shared.clock import Clock
from shared.protocol import subjects
from shared.protocol.access.key_usage import KeyUsage, UsagePlace, day_of
from shared.watch import usage_ledger
from shared.watch.usage_ledger import UsageLedger
from tests.shared.bus.servers import until
from tests.shared.replica.test_readers import ManualClock


def at_noon() -> ManualClock:
    """Of a month's last day."""
    clock = ManualClock()
    clock.now_s = datetime(2027, 1, 31, 12, tzinfo=UTC).timestamp()
    return clock


CLOCK = at_noon()
TODAY = day_of(CLOCK.unix_s())
ONE = KeyUsage(1, 10, 4, 5)
OF_A, OF_B, OF_BATCH = (UsagePlace(TODAY, "alice", source) for source in ("gateway-a", "gateway-b", "batch_1"))


@contextlib.asynccontextmanager
async def running(bus: Bus, clock: Clock = CLOCK) -> AsyncIterator[UsageLedger]:
    """Leaving is a kill."""
    ledger = UsageLedger(bus, clock)
    await ledger.start()
    task = asyncio.create_task(ledger.run())
    try:
        yield ledger
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def usage_bucket(bus: Bus) -> Bucket[KeyUsage]:
    return await bus.bucket(subjects.KEY_USAGE_BUCKET, KeyUsage)


async def until_total(ledger: UsageLedger, usage: KeyUsage) -> None:
    async with asyncio.timeout(60):
        while ledger.totals.total("alice", TODAY) != usage:  # noqa: ASYNC110 (its watch says so nowhere else)
            await asyncio.sleep(0.01)


async def test_several_processes_add_up_and_none_counts_twice(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_ledger, "PERIOD_S", 0.05)
    async with running(bus) as a, running(bus) as b:
        for ledger, place in ((a, OF_A), (b, OF_B), (b, OF_BATCH)):
            for _ in range(3):
                ledger.put(place, ledger.get(place) + ONE)
            ledger.put(place, ledger.get(place))  # nothing new
        nine = KeyUsage(9, 90, 36, 45)
        await until_total(a, nine)
        await until_total(b, nine)
        assert dict(await a.stored()) == {OF_A: a.get(OF_A), OF_B: b.get(OF_B), OF_BATCH: b.get(OF_BATCH)}
    async with running(bus) as later:
        assert later.totals.total("alice", TODAY) == nine
        later.put(OF_BATCH, later.get(OF_BATCH))
        later.put(OF_BATCH, KeyUsage(4, 40, 16, 20))
        await later.flush()
        assert later.totals.total("alice", TODAY[:7]) == KeyUsage(10, 100, 40, 50)


async def test_what_a_killed_process_had_not_told_is_missing_and_nothing_else(bus: Bus) -> None:
    async with running(bus) as killed:
        killed.put(OF_A, ONE)
        await killed.flush()
        killed.put(OF_A, ONE + ONE)
    async with running(bus) as other:
        assert other.totals.total("alice", TODAY) == ONE


async def test_what_cannot_be_written_is_written_later(
    bus: Bus, nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And it is said until then."""
    own = await Bus.connect(nats_url, "away")
    ledger = UsageLedger(own, CLOCK)
    await ledger.start()
    ledger.put(OF_A, ONE)
    ledger.put(OF_BATCH, ONE)
    own.fence(lambda subject: False)
    await ledger.try_flush()
    (said,) = [vars(each) for each in caplog.records if each.message == "usage of keys not written yet"]
    assert said["left"] == 2 and OF_A.key in said["why"]
    async with running(bus) as other:
        assert other.totals.total("alice", TODAY) == KeyUsage()
        own.fence(lambda subject: True)
        ledger.put(OF_A, ONE + ONE)
        await ledger.try_flush()
        await until_total(other, ONE + ONE + ONE)
    await own.close()


async def test_what_is_being_written_where_a_process_is_told_to_end_is_written_at_its_end(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = UsageLedger(bus, CLOCK)
    await ledger.start()
    ledger.put(OF_A, ONE)
    sent = asyncio.Event()

    async def lose(*_: object, **__: object) -> None:
        sent.set()

    with monkeypatch.context() as patched:
        patched.setattr(bus._client, "publish", lose)
        writing = asyncio.create_task(ledger.flush())
        await sent.wait()
        writing.cancel()
        await asyncio.wait([writing])
    await ledger.stop()
    async with running(bus) as other:
        assert other.totals.total("alice", TODAY) == ONE


async def test_old_days_count_for_no_budget_and_are_forgotten(bus: Bus) -> None:
    old = UsagePlace("2020-02-03", "alice", "gateway-a")
    day_after = old._replace(day="2020-02-04")
    bucket = await usage_bucket(bus)
    for place in (day_after, old):
        await bucket.put(place.key, ONE)
    async with running(bus) as ledger:
        assert ledger.totals.total("alice", "2020-02") == KeyUsage()
        ledger.put(OF_A, ONE)
        assert await ledger.stored() == [(old, ONE), (day_after, ONE), (OF_A, ONE)]
        assert await ledger.forget("2020-02-04") == 1
        assert old.key not in "".join(await bus.subjects(f"KV_{subjects.KEY_USAGE_BUCKET}", ">"))
        assert await ledger.stored() == [(day_after, ONE), (OF_A, ONE)]


async def test_what_is_counted_while_it_is_written_is_written_too(bus: Bus) -> None:
    async with running(bus) as ledger:
        ledger.put(OF_A, ONE)
        writing = asyncio.create_task(ledger.flush())
        await asyncio.sleep(0)
        ledger.put(OF_A, ONE + ONE)
        await writing
    async with running(bus) as other:
        assert other.totals.total("alice", TODAY) == ONE + ONE


async def test_what_a_source_has_counted_is_its_own_word_alone(bus: Bus) -> None:
    """Whatever comes back of it from the bus: it is older."""
    bucket = await usage_bucket(bus)
    async with running(bus) as ledger:
        ledger.put(OF_A, ONE + ONE)
        await bucket.put(OF_A.key, ONE)
        await bucket.put(OF_B.key, ONE)
        await until(lambda: ledger.get(OF_B) == ONE)
        assert ledger.get(OF_A) == ONE + ONE and ledger.totals.total("alice", TODAY) == ONE + ONE + ONE


@pytest.mark.parametrize("is_there_before", [True, False])
async def test_what_is_no_usage_of_a_key_counts_for_nothing(bus: Bus, is_there_before: bool) -> None:
    """A key of another form, a record that is no usage, one that is deleted."""
    bucket, numbers = await usage_bucket(bus), await bus.bucket(subjects.KEY_USAGE_BUCKET, list[int])

    async def write() -> None:
        for key in ("alice", "a.b.c.d.e", f"{TODAY}.bob.gone"):
            await bucket.put(key, ONE)
        await bucket.delete(f"{TODAY}.bob.gone")
        await numbers.put(f"{TODAY}.alice.numbers", [1, 2])

    if is_there_before:
        await write()
    async with running(bus) as ledger:
        if not is_there_before:
            await write()
        await bucket.put(OF_B.key, ONE)
        await until_total(ledger, ONE)
        assert await ledger.stored() == [(OF_B, ONE)]


class DailyLedger:
    """One that writes all the time, from the last day of January on."""

    def __init__(self, bucket: Bucket[KeyUsage], ledger: UsageLedger, clock: ManualClock) -> None:
        self.bucket = bucket
        self.ledger = ledger
        self.clock = clock
        self._marks = count()

    @classmethod
    @contextlib.asynccontextmanager
    async def begun(cls, bus: Bus) -> AsyncIterator["DailyLedger"]:
        clock = at_noon()
        async with running(bus, clock) as ledger:
            yield cls(await usage_bucket(bus), ledger, clock)

    async def written(self, place: UsagePlace) -> bool:
        return place.key in await self.bucket.keys()

    async def next_day(self) -> None:
        """Until all is done that it does at intervals, with the new date: between two writes."""
        self.clock.now_s += 24 * 3600.0
        for _ in range(2):
            mark = UsagePlace(day_of(self.clock.unix_s()), "nobody", f"mark-{next(self._marks)}")
            self.ledger.put(mark, ONE)
            await until(lambda: self.written(mark))  # noqa: B023 (over within the turn)


async def test_counts_go_with_their_month_and_a_sources_own_with_their_day(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is added to a day that is over for long."""
    monkeypatch.setattr(usage_ledger, "PERIOD_S", 0.01)
    own, of_other = (UsagePlace("2027-01-31", "alice", source) for source in ("gateway-a", "gateway-b"))
    async with DailyLedger.begun(bus) as daily:
        ledger = daily.ledger
        ledger.put(own, ONE)
        await daily.bucket.put(of_other.key, ONE)
        await until(lambda: ledger.totals.total("alice", "2027-01") == ONE + ONE)
        await daily.next_day()
        assert ledger.totals.total("alice", "2027-01") == ledger.get(of_other) == KeyUsage()
        assert ledger.get(own) == ONE
        await daily.next_day()
        assert ledger.get(own) == ONE, "what a request of that day takes may still be added to it"
        await daily.next_day()
        assert ledger.get(own) == KeyUsage()


async def test_what_is_known_is_gone_through_once_a_day(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_ledger, "PERIOD_S", 0.01)
    months: list[str] = []
    async with DailyLedger.begun(bus) as daily:
        monkeypatch.setattr(daily.ledger.totals, "forget_before", months.append)
        for _ in range(3):
            await daily.next_day()
    assert months.count("2027-02") == 3


async def test_what_is_not_written_yet_is_kept_however_old_it_is(
    bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(usage_ledger, "PERIOD_S", 0.01)
    away = await Bus.connect(nats_url, "away")
    own = UsagePlace("2027-01-31", "alice", "gateway-a")
    async with DailyLedger.begun(away) as daily:
        away.fence(lambda subject: False)
        daily.ledger.put(own, ONE)
        daily.clock.now_s += 10 * 24 * 3600.0
        caplog.clear()
        await until(lambda: caplog.messages.count("usage of keys not written yet") > 2)
        away.fence(lambda subject: True)
        await until(lambda: daily.written(own))
    assert (await (await usage_bucket(bus)).get(own.key)).value == ONE
    await away.close()
