"""Ledgers of several processes over one bus."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from shared.bus import Bus
from shared.clock import SystemClock
from shared.protocol import subjects
from shared.protocol.access.key_usage import KeyUsage, UsagePlace, day_of
from shared.watch import usage_ledger
from shared.watch.usage_ledger import UsageLedger

CLOCK = SystemClock()
TODAY = day_of(CLOCK.unix_s())
ONE = KeyUsage(1, 10, 4, 5)
OF_A, OF_B, OF_BATCH = (UsagePlace(TODAY, "alice", source) for source in ("gateway-a", "gateway-b", "batch_1"))


@contextlib.asynccontextmanager
async def running(bus: Bus) -> AsyncIterator[UsageLedger]:
    """Leaving is a kill."""
    ledger = UsageLedger(bus, CLOCK)
    await ledger.start()
    task = asyncio.create_task(ledger.run())
    try:
        yield ledger
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


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


async def test_what_cannot_be_written_is_written_later(bus: Bus, nats_url: str) -> None:
    own = await Bus.connect(nats_url, "away")
    ledger = UsageLedger(own, CLOCK)
    await ledger.start()
    ledger.put(OF_A, ONE)
    own.fence(lambda subject: False)
    await ledger.try_flush()
    async with running(bus) as other:
        assert other.totals.total("alice", TODAY) == KeyUsage()
        own.fence(lambda subject: True)
        ledger.put(OF_A, ONE + ONE)
        await ledger.try_flush()
        await until_total(other, ONE + ONE)
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
    bucket = await bus.bucket(subjects.KEY_USAGE_BUCKET, KeyUsage)
    await bucket.put(old.key, ONE)
    async with running(bus) as ledger:
        assert ledger.totals.total("alice", "2020-02") == KeyUsage()
        ledger.put(OF_A, ONE)
        assert await ledger.stored() == [(old, ONE), (OF_A, ONE)]
        assert await ledger.forget("2020-02-04") == 1
        assert await ledger.stored() == [(OF_A, ONE)]
