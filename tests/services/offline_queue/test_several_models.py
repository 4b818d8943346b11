"""Batches of several models on one bus, and those of a version that had one."""

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from services.offline_queue.batches.input import BatchInput
from services.offline_queue.batches.manager import BatchManager
from services.offline_queue.batches.unserved import UnservedBatches
from shared.bus import Bus
from shared.bus.lease import Lease
from shared.openai.completions.requests import CHAT
from shared.protocol import subjects
from shared.protocol.access.api_keys import ApiKeyRecord
from shared.protocol.access.key_usage import KeyUsage, UsagePlace
from shared.protocol.offline.batches import BatchRecord
from shared.protocol.offline.requests import OfflineFailure, OfflineRequest
from shared.protocol.services import queue_lease
from tests.services.offline_queue.batch_desk import (
    MODEL,
    TOKENIZER,
    WORK,
    Desk,
    ManualClock,
    StoringPool,
    answer,
    as_jsonl,
    chat_line,
)

OTHER = "org/other"
OTHERS = subjects.of_model(OTHER)
LINES = [chat_line(f"line {number}") for number in range(6)]
DAY = "2001-02-03"


@pytest.fixture
async def desk(bus: Bus, nats_url: str) -> AsyncIterator[Desk]:
    yield await Desk.open(nats_url, bus)


async def give_to(desk: Desk, batch_id: str, model_name: str) -> None:
    await desk.batches.edit(batch_id, lambda record: replace(record, model_name=model_name))


async def test_another_models_batch_is_left_alone(desk: Desk) -> None:
    theirs = await desk.submit(LINES)
    await give_to(desk, theirs, OTHER)
    async with desk.running() as (manager, _):
        ours = await desk.submit(LINES)
        record = await desk.until_cleared(ours)
        assert (record.status, record.request_counts.completed) == ("completed", len(LINES))
        entry = (await desk.batches.get(theirs)).value
        assert entry is not None and entry.status == "validating"
        assert manager.is_being_read(entry.input_file_id), "nobody deletes its file meanwhile"


async def left_open(desk: Desk) -> str:
    """A batch of a model that was served, with two lines done."""
    batch_id = await desk.submit(LINES)
    await give_to(desk, batch_id, OTHER)
    async with desk.running(permits=0, model_name=OTHER) as (_, pool):
        await pool.until(lambda: len(pool.waiting) == len(LINES))
        for request in list(pool.waiting.values())[:2]:
            await desk.bus.store(OTHERS.result(request.request.request_id), answer(request))
        await desk.until(batch_id, lambda record: record.request_counts.completed == 2)
    return batch_id


@pytest.mark.parametrize("ending", ["cancelled", "expired"])
async def test_a_batch_of_a_model_that_is_not_served_any_more_comes_to_its_end(
    nats_url: str, bus: Bus, clock: ManualClock, ending: str
) -> None:
    desk = await Desk.open(nats_url, bus, clock)
    batch_id = await left_open(desk)
    async with desk.running() as (manager, _):
        record = await desk.until_cleared(await desk.submit(LINES))
        entry = (await desk.batches.get(batch_id)).value
        assert entry is not None and entry.status == "in_progress"
    if ending == "cancelled":
        await desk.cancel(batch_id)
    else:
        clock.now_s += 86_400
    async with desk.running() as (manager, pool):
        record = await desk.until_cleared(batch_id)
        assert not pool.added and not manager.stats().held_bytes
    counts = record.request_counts
    assert (record.status, counts.completed, counts.left) == (ending, 2, len(LINES) - 2)
    results = await desk.results(record)
    assert {line["custom_id"] for line in LINES} == results.keys()
    assert [each["error"]["code"] for each in results.values() if each["error"]] == [f"batch_{ending}"] * 4
    assert not await bus.subjects(subjects.REQUESTS_STREAM, ">") | await bus.subjects(subjects.RESULTS_STREAM, ">")


async def test_one_that_was_not_read_in_expires_as_well(nats_url: str, bus: Bus, clock: ManualClock) -> None:
    desk = await Desk.open(nats_url, bus, clock)
    batch_id = await desk.submit(LINES)
    await give_to(desk, batch_id, OTHER)
    clock.now_s += 86_400
    async with desk.running():
        record = await desk.until_cleared(batch_id)
    assert (record.status, record.output_file_id, record.error_file_id) == ("expired", None, None)


async def test_one_whose_offline_queue_is_at_work_is_left_to_it(nats_url: str, bus: Bus, clock: ManualClock) -> None:
    """That of another stack on this bus."""
    desk = await Desk.open(nats_url, bus, clock)
    batch_id = await left_open(desk)
    await desk.cancel(batch_id)
    other = await Bus.connect(nats_url, "other")
    await Lease(other, queue_lease(OTHERS.model), clock).take(lambda holder: None)
    async with desk.running() as (manager, _):
        unserved = UnservedBatches(manager.tools, MODEL.name, ())
        found = [entry.value for entry in await desk.batches.entries() if entry.value is not None]
        assert await unserved.ending(found) == []
        await other.close()
        assert [life.record.id for life in await unserved.ending(found)] == [batch_id]
        assert await UnservedBatches(manager.tools, MODEL.name, (OTHER,)).ending(found) == []
        assert await UnservedBatches(manager.tools, MODEL.name, ("a",)).ending(found) == []


async def test_tokens_of_all_models_count_for_a_quota(desk: Desk) -> None:
    keys = await desk.bus.bucket(subjects.API_KEYS_BUCKET, ApiKeyRecord)
    await keys.put("alice", ApiKeyRecord("alice", "hash", "hint", 0, max_queued_tokens=1000))
    theirs = await desk.submit(LINES, client_id="name-alice", owner="key-alice")
    await give_to(desk, theirs, OTHER)
    await desk.batches.edit(theirs, lambda record: replace(record, status="in_progress", queued_tokens=990))
    async with desk.running():
        ours = await desk.submit(LINES, client_id="name-alice", owner="key-alice")
        record = await desk.until_status(ours, "failed")
    assert record.errors is not None and record.errors.data[0].code == "token_limit_exceeded"
    assert "other batches have 990" in record.errors.data[0].message


def test_a_line_for_another_model_fails_alone() -> None:
    record = BatchRecord("batch_1", CHAT, "file-1", "24h", 1000, 2000, "validating", model_name=MODEL.name)
    lines = [chat_line("a"), chat_line("b", body={"model": "bee"}), chat_line("c", body={"model": "nobody"})]
    data = as_jsonl(lines).splitlines()
    parsed = BatchInput(record, TOKENIZER, replace(MODEL, others=("bee",))).parse(list(enumerate(data, 1)))
    assert [request.line for request in parsed.requests] == [1]
    (failed,) = parsed.failures
    assert failed.request_id == "batch_1.2" and '"model_mismatch"' in failed.error
    (error,) = parsed.errors
    assert (error.line, error.code) == (3, "model_not_found")
    assert error.message.endswith(f"this server has {MODEL.name!r} and 'bee'")


async def age(desk: Desk, batch_id: str, model: str | None) -> None:
    """As a version with one model had left it: no name in the record, and none in the subjects."""
    await desk.bus.ensure_streams()
    old = f"{subjects.PREFIX}.{{}}.{{}}"
    moves = (
        (subjects.REQUESTS_STREAM, "requests", WORK.batch_requests(batch_id)),
        (subjects.RESULTS_STREAM, "results", WORK.batch_results(batch_id)),
        (subjects.RESULTS_STREAM, "results", WORK.batch_failures(batch_id)),
    )
    for stream, kind, subject in moves:
        async for raw in desk.bus.read_raw(stream, subject):
            await desk.bus.store_raw(old.format(kind, raw.subject.split(".", 3)[3]), raw.data, {})
        await desk.bus.purge(stream, subject)
    usage = {DAY: KeyUsage(2, 10, 0, 4)}
    await desk.batches.edit(
        batch_id,
        lambda record: replace(record, model_name="", model=model, usage_by_day=usage, client_id="name-alice"),
    )


async def test_an_open_batch_of_a_version_with_one_model_goes_on(desk: Desk) -> None:
    batch_id = await desk.submit(LINES)
    async with desk.running(permits=2):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 2)
    await desk.bus.store(WORK.failure(f"{batch_id}.6", "run"), OfflineFailure(f"{batch_id}.6", "it died"))
    await age(desk, batch_id, MODEL.name)
    usages = await desk.bus.bucket(subjects.KEY_USAGE_BUCKET, KeyUsage)
    await usages.put(UsagePlace(DAY, "alice", batch_id).key, KeyUsage(2, 10, 0, 4))
    async with desk.running() as (_, pool):
        record = await desk.until_cleared(batch_id)
        assert (f"{batch_id}.6", 1) in pool.retried, "its failures are known"
        assert not {f"{batch_id}.1", f"{batch_id}.2"} & set(pool.added), "what has a result does not run again"
    assert (record.status, record.request_counts.completed) == ("completed", len(LINES))
    assert record.model_name == MODEL.name and len(await desk.results(record)) == len(LINES)
    counted = [key for key in await usages.keys() if key.startswith(f"{DAY}.alice.")]
    assert counted == [UsagePlace(DAY, "alice", batch_id, WORK.model).key], "once"


async def test_one_that_was_not_read_in_yet_is_read_in(desk: Desk) -> None:
    batch_id = await desk.submit(LINES)
    await age(desk, batch_id, None)
    async with desk.running():
        record = await desk.until_cleared(batch_id)
    assert (record.status, record.model_name, record.request_counts.completed) == ("completed", MODEL.name, len(LINES))


async def test_one_of_a_model_that_is_not_here_waits_for_it(desk: Desk) -> None:
    batch_id = await desk.submit(LINES)
    async with desk.running(permits=0):
        await desk.until_status(batch_id, "in_progress")
    await age(desk, batch_id, "another")
    async with desk.running():
        ours = await desk.submit(LINES)
        await desk.until_cleared(ours)
    record = (await desk.batches.get(batch_id)).value
    assert record is not None and (record.status, record.model_name) == ("in_progress", "")
    served = replace(MODEL, aliases=("another",))
    pool = StoringPool(desk.bus, 0)
    manager = BatchManager(desk.bus, MODEL.name, TOKENIZER, served, pool, desk.clock)  # type: ignore[arg-type]
    await manager.start()
    record = (await desk.batches.get(batch_id)).value
    assert record is not None and record.model_name == MODEL.name
    read = desk.bus.read(subjects.REQUESTS_STREAM, WORK.batch_requests(batch_id), OfflineRequest)
    assert [stored.message.line async for stored in read] == list(range(1, len(LINES) + 1))
