"""What batches use of a key's budget: each token once, over kills of the offline-queue, and no more than there is."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.access.api_keys import ApiKeyRecord
from shared.protocol.access.key_usage import KeyUsage, day_of
from shared.protocol.offline.batches import BatchRecord
from shared.watch.usage_ledger import stored_usages
from tests.services.offline_queue.batch_desk import Desk, ManualClock, chat_line
from tests.shared.bus.servers import until

DAY_S = 24 * 3600


@pytest.fixture
async def desk(bus: Bus, nats_url: str) -> AsyncIterator[Desk]:
    yield await Desk.open(nats_url, bus)


async def stored(bus: Bus, name: str) -> dict[tuple[str, str], KeyUsage]:
    """By day and batch."""
    bucket = await bus.bucket(subjects.KEY_USAGE_BUCKET, KeyUsage)
    return {(place.day, place.source): usage for place, usage in await stored_usages(bucket) if place.name == name}


def used(record: BatchRecord) -> KeyUsage:
    usage = record.usage
    cached = usage.input_tokens_details.cached_tokens
    return KeyUsage(record.request_counts.completed, usage.input_tokens, cached, usage.output_tokens)


async def test_each_token_is_counted_once_on_the_day_of_its_use(desk: Desk) -> None:
    clock = desk.clock
    assert isinstance(clock, ManualClock)
    ids = [f"request {number}" for number in range(20)]
    batch_id = await desk.submit([chat_line(each) for each in ids], window_s=10 * DAY_S, client_id="name-alice")
    first, second = day_of(clock.unix_s()), day_of(clock.unix_s() + DAY_S)
    async with desk.running(permits=7):
        yesterday = await desk.until(batch_id, lambda record: record.request_counts.completed == 7)
    clock.now_s += DAY_S
    async with desk.running(permits=5):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 12)
    nobodys = await desk.submit([chat_line("x")], client_id="key-12")
    async with desk.running():
        record = await desk.until_cleared(batch_id)
        other = await desk.until_cleared(nobodys)
    counted = await stored(desk.bus, "alice")
    assert counted == {(first, batch_id): used(yesterday), (second, batch_id): counted[second, batch_id]}
    assert counted[first, batch_id] + counted[second, batch_id] == used(record)
    assert used(record).num_requests == 20 and used(record).output_tokens > 0
    assert not other.usage_by_day and used(other).num_requests == 1


async def test_what_is_left_of_a_batch_fails_where_its_key_has_no_tokens_left(desk: Desk) -> None:
    keys = await desk.bus.bucket(subjects.API_KEYS_BUCKET, ApiKeyRecord)
    await keys.put("bob", ApiKeyRecord("bob", "hash", "hint", 0, tokens_per_day=1))
    ids = [f"request {number}" for number in range(300)]
    batch_id = await desk.submit([chat_line(each) for each in ids], client_id="name-bob")
    async with desk.running(permits=3) as (_, pool):
        record = await desk.until_cleared(batch_id)
        assert not pool.waiting
    counts = record.request_counts
    assert record.status == "completed" and (counts.total, counts.completed, counts.failed) == (300, 3, 297)
    results = await desk.results(record)
    failed = [results[each]["response"] for each in ids if results[each]["response"]["status_code"] != 200]
    assert len(failed) == 297
    assert {each["status_code"] for each in failed} == {429}
    (error,) = {tuple(sorted(each["body"]["error"].items(), key=str)) for each in failed}
    assert dict(error)["code"] == dict(error)["type"] == "insufficient_quota" and "'bob'" in dict(error)["message"]
    assert await stored(desk.bus, "bob") == {(day_of(desk.clock.unix_s()), batch_id): used(record)}


async def test_what_was_used_in_another_month_is_not_written_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.watch.usage_ledger.PERIOD_S", 0.01)
    clock, usages = desk.clock, await desk.bus.bucket(subjects.KEY_USAGE_BUCKET, KeyUsage)
    assert isinstance(clock, ManualClock)
    ids = [f"request {number}" for number in range(9)]
    batch_id = await desk.submit([chat_line(each) for each in ids], window_s=32 * DAY_S, client_id="name-carol")
    first, last = day_of(clock.unix_s()), day_of(clock.unix_s() + 31 * DAY_S)
    async with desk.running(permits=2):
        await until(lambda: has_stored(desk.bus, first, batch_id, 2))
    clock.now_s += 31 * DAY_S
    async with desk.running(permits=1) as (_, pool):
        await until(lambda: has_stored(desk.bus, last, batch_id, 1))
        before = {entry.key: entry.revision for entry in await usages.entries()}
        for number in (2, 3, 4):
            pool.permits.release()
            await until(lambda: has_stored(desk.bus, last, batch_id, number))  # noqa: B023
    changed = [entry.key for entry in await usages.entries() if before[entry.key] != entry.revision]
    assert [key.partition(".")[0] for key in changed] == [last]


@pytest.mark.parametrize(
    "odd",
    [
        {"usage_by_day": {"no day": KeyUsage(1, 1)}},
        {"usage_by_day": {"*": KeyUsage(1, 1)}},
        {"usage_by_day": {"1970-01-12": KeyUsage(1, 10**400)}},
        {"client_id": "name-no name"},
    ],
    ids=["day", "wildcard", "tokens", "name"],
)
async def test_a_record_with_odd_usage_is_as_good_as_absent(desk: Desk, odd: dict[str, Any]) -> None:
    """No other batch waits for its usage to be written."""
    day = day_of(desk.clock.unix_s())
    odd_id = await desk.submit([chat_line("a")], client_id="name-dave")
    await desk.batches.edit(odd_id, lambda record: replace(record, **odd))
    batch_id = await desk.submit([chat_line("a")], client_id="name-dave")
    async with desk.running():
        record = await desk.until_cleared(batch_id)
    assert await stored(desk.bus, "dave") == {(day, batch_id): used(record)}


async def has_stored(bus: Bus, day: str, batch_id: str, num_requests: int) -> bool:
    usage = (await stored(bus, "carol")).get((day, batch_id))
    return usage is not None and usage.num_requests == num_requests
