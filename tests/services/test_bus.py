"""The bus wrapper against a real nats-server."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus import Bus
from shared.errors import BusError, ConflictError, NoResponderError, NotFoundOnBusError
from shared.protocol import subjects
from shared.protocol.messages import AbortRequests, FileRecord, FinishReason, OfflineResult


def file_record(file_id: str, size: int = 1) -> FileRecord:
    return FileRecord(id=file_id, bytes=size, created_at=1, filename="a.jsonl", purpose="batch")


async def test_messages_arrive_in_order(bus: Bus) -> None:
    seen: list[str] = []
    done = asyncio.Event()

    async def handler(message: AbortRequests) -> None:
        seen.append(message.request_ids[0])
        if len(seen) == 100:
            done.set()

    await bus.subscribe("test.in", AbortRequests, handler)
    await bus.flush()
    for number in range(100):
        await bus.publish("test.in", AbortRequests([str(number)]))
    await asyncio.wait_for(done.wait(), 5)
    assert seen == [str(number) for number in range(100)]


async def test_a_request_is_answered_and_a_lonely_one_refused(bus: Bus) -> None:
    async def answer(message: AbortRequests) -> AbortRequests:
        return AbortRequests(message.request_ids[::-1])

    await bus.serve("test.reverse", AbortRequests, answer)
    reply = await bus.request("test.reverse", AbortRequests(["a", "b"]), AbortRequests)
    assert reply.request_ids == ["b", "a"]
    with pytest.raises(NoResponderError):
        await bus.request("test.nobody", AbortRequests([]), AbortRequests, timeout_s=0.5)


async def test_a_subject_stores_one_result(bus: Bus) -> None:
    first = OfflineResult("batch_1.1", [1, 2], FinishReason.STOP)
    second = OfflineResult("batch_1.1", [3], FinishReason.STOP)
    assert await bus.store(subjects.result("batch_1.1"), first)
    assert not await bus.store(subjects.result("batch_1.1"), second)
    stored = [s async for s in bus.read(subjects.RESULTS_STREAM, subjects.batch_results("batch_1"), OfflineResult)]
    assert [s.message for s in stored] == [first]


async def test_read_ends_and_follow_goes_on(bus: Bus) -> None:
    pairs = [
        (subjects.result(f"batch_1.{n}"), OfflineResult(f"batch_1.{n}", [n], FinishReason.STOP)) for n in range(700)
    ]
    await bus.store_many(list(pairs))
    read = [
        s.message async for s in bus.read(subjects.RESULTS_STREAM, subjects.batch_results("batch_1"), OfflineResult)
    ]
    assert [m.output_token_ids for m in read] == [[n] for n in range(700)]
    nothing = [s async for s in bus.read(subjects.RESULTS_STREAM, subjects.batch_results("batch_2"), OfflineResult)]
    assert nothing == []

    seen = 0
    async for stored in bus.follow(subjects.RESULTS_STREAM, subjects.ALL_RESULTS, OfflineResult):
        if stored is None:
            assert seen == 700
            await bus.store(subjects.result("batch_3.1"), OfflineResult("batch_3.1", [], FinishReason.LENGTH))
            continue
        seen += 1
        if stored.message.request_id == "batch_3.1":
            break
    assert seen == 701


async def test_read_ends_where_the_rest_is_purged_meanwhile(bus: Bus) -> None:
    pairs = [
        (subjects.result(f"batch_1.{n}"), OfflineResult(f"batch_1.{n}", [n], FinishReason.STOP)) for n in range(600)
    ]
    await bus.store_many(list(pairs))
    seen = 0
    async for _ in bus.read(subjects.RESULTS_STREAM, subjects.batch_results("batch_1"), OfflineResult):
        seen += 1
        if seen == 1:
            await bus.purge(subjects.RESULTS_STREAM, subjects.batch_results("batch_1"))
    assert 1 <= seen < 600


async def test_deleting_stored_messages(bus: Bus) -> None:
    for number in range(3):
        await bus.store(subjects.result(f"batch_1.{number}"), OfflineResult(f"batch_1.{number}", [], FinishReason.STOP))
    stored = [s async for s in bus.read(subjects.RESULTS_STREAM, subjects.ALL_RESULTS, OfflineResult)]
    await bus.delete_stored(subjects.RESULTS_STREAM, stored[1].sequence)
    await bus.delete_stored(subjects.RESULTS_STREAM, stored[1].sequence)
    left = [s.subject async for s in bus.read(subjects.RESULTS_STREAM, subjects.ALL_RESULTS, OfflineResult)]
    assert left == [subjects.result("batch_1.0"), subjects.result("batch_1.2")]
    with pytest.raises(BusError):
        await bus.delete_stored("NO_SUCH_STREAM", 1)
    await bus.purge(subjects.RESULTS_STREAM, subjects.batch_results("batch_1"))
    assert [s async for s in bus.read(subjects.RESULTS_STREAM, subjects.ALL_RESULTS, OfflineResult)] == []


async def test_bucket_compare_and_set(bus: Bus) -> None:
    bucket = await bus.bucket(subjects.FILES_BUCKET, FileRecord)
    with pytest.raises(NotFoundOnBusError):
        await bucket.get("file-1")
    revision = await bucket.create("file-1", file_record("file-1"))
    with pytest.raises(ConflictError):
        await bucket.create("file-1", file_record("file-1"))
    await bucket.update("file-1", file_record("file-1", 2), revision)
    with pytest.raises(ConflictError):
        await bucket.update("file-1", file_record("file-1", 3), revision)
    entry = await bucket.get("file-1")
    assert entry.value == file_record("file-1", 2)
    await bucket.delete("file-1")
    with pytest.raises(NotFoundOnBusError):
        await bucket.get("file-1")
    await bucket.create("file-1", file_record("file-1"))
    assert [entry.key for entry in await bucket.entries()] == ["file-1"]


async def test_watch_tells_what_is_there_and_what_comes(bus: Bus) -> None:
    bucket = await bus.bucket(subjects.FILES_BUCKET, FileRecord)
    await bucket.put("file-1", file_record("file-1"))
    seen: list[str] = []
    async for entry in bucket.watch():
        if entry is None:
            seen.append("caught up")
            await bucket.put("file-2", file_record("file-2"))
            continue
        seen.append(entry.key if entry.value else f"{entry.key} gone")
        if entry.key == "file-2" and entry.value:
            await bucket.delete("file-1")
        if entry.key == "file-1" and not entry.value:
            break
    assert seen == ["file-1", "caught up", "file-2", "file-1 gone"]


async def test_objects_of_several_chunks(bus: Bus) -> None:
    objects = await bus.objects()
    data = bytes(range(256)) * 4096  # 1 MiB
    assert await objects.put("file-1", data) == len(data)
    assert b"".join([chunk async for chunk in objects.chunks("file-1")]) == data
    assert await objects.put("file-2", b"") == 0
    assert [chunk async for chunk in objects.chunks("file-2")] == []
    await objects.delete("file-1")
    await objects.delete("file-1")
    with pytest.raises(NotFoundOnBusError):
        _ = [chunk async for chunk in objects.chunks("file-1")]


async def test_entries_are_whole_while_many_read_and_write(bus: Bus) -> None:
    bucket = await bus.bucket(subjects.FILES_BUCKET, FileRecord)
    for number in range(20):
        await bucket.put(f"file-{number}", file_record(f"file-{number}"))

    async def read() -> set[str]:
        return {entry.key for entry in await bucket.entries()}

    async def write(number: int) -> None:
        await bucket.put(f"file-{number}", file_record(f"file-{number}", 2))

    seen = await asyncio.gather(*(read() for _ in range(50)), *(write(number) for number in range(20)))
    keys = {f"file-{number}" for number in range(20)}
    assert all(found == keys for found in seen if found is not None)


async def test_a_record_of_another_version_is_as_good_as_deleted(bus: Bus) -> None:
    old = await bus.bucket("test_versions", AbortRequests)
    await old.put("a", AbortRequests(["x"]))
    bucket = await bus.bucket("test_versions", FileRecord)
    await bucket.put("b", file_record("b"))
    seen: list[tuple[str, bool]] = []
    async for entry in bucket.watch():
        if entry is None:
            break
        seen.append((entry.key, entry.value is None))
    assert seen == [("a", True), ("b", False)]
