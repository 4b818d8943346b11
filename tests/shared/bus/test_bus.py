"""The bus wrapper, against a real nats-server and the one in memory."""

import asyncio
import contextlib
import dataclasses
import itertools

import msgspec
import pytest
import uvloop

from shared.bus import Bus
from shared.bus.live import Listener
from shared.bus.objects import CHUNKS, STREAM
from shared.bus.pulls import FETCH_BYTES
from shared.cancellation import check_cancelled
from shared.errors import BusError, ConflictError, NoResponderError, NotFoundOnBusError
from shared.protocol import subjects
from shared.protocol.offline.batches import FileObject
from shared.protocol.offline.requests import OfflineResult
from shared.protocol.requests import AbortRequests
from shared.protocol.sampling import FinishReason
from tests.shared.bus.servers import until

WORK = subjects.of_model("m")  # what is stored is of this model


def file_record(file_id: str, size: int = 1) -> FileObject:
    return FileObject(id=file_id, bytes=size, created_at=1, filename="a.jsonl", purpose="batch")


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


async def test_a_flush_that_is_given_up_does_not_end_the_connection(bus: Bus) -> None:
    heard = asyncio.Event()

    async def handler(message: AbortRequests) -> None:
        heard.set()

    await bus.subscribe("test.in", AbortRequests, handler)
    await bus.flush()
    for _ in range(20):  # of which one at least waits for the server's answer then
        flushing = asyncio.ensure_future(bus.flush())
        await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.wait((flushing,))
    await bus.publish("test.in", AbortRequests([]))
    await asyncio.wait_for(heard.wait(), 5)


async def test_a_handler_waits_for_what_came_before_on_another_subject(bus: Bus) -> None:
    """However long that takes to be handled."""
    seen: list[str] = []
    done, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(message: AbortRequests) -> None:
        await go_on.wait()
        await asyncio.sleep(0)
        seen.append(message.request_ids[0])

    async def after(message: AbortRequests) -> None:
        go_on.set()
        await before.caught_up()
        seen.append(message.request_ids[0])
        if message.request_ids == ["last"]:
            done.set()

    before = await bus.subscribe("test.before", AbortRequests, slowly)
    await bus.subscribe("test.after", AbortRequests, after)
    await bus.flush()
    sent = [f"{number}" for number in range(20)]
    for each in sent:
        await bus.publish("test.before", AbortRequests([each]))
    await bus.publish("test.after", AbortRequests(["first"]))
    await bus.publish("test.before", AbortRequests(["20"]))
    await bus.publish("test.after", AbortRequests(["last"]))
    await asyncio.wait_for(done.wait(), 5)
    assert [each for each in seen if each not in ("first", "last")] == [*sent, "20"]
    assert seen.index("first") > seen.index("19") and seen[-1] == "last"


async def test_a_request_is_answered_and_a_lonely_one_refused(bus: Bus) -> None:
    async def answer(message: AbortRequests) -> AbortRequests:
        return AbortRequests(message.request_ids[::-1])

    await bus.serve("test.reverse", AbortRequests, answer)
    reply = await bus.request("test.reverse", AbortRequests(["a", "b"]), AbortRequests)
    assert reply.request_ids == ["b", "a"]
    with pytest.raises(NoResponderError):
        await bus.request("test.nobody", AbortRequests([]), AbortRequests, timeout_s=0.5)


async def test_a_handler_that_fails_is_told_of_and_the_next_message_is_handled(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(message: AbortRequests) -> AbortRequests:
        assert message.request_ids, "nothing to reverse"
        return message

    await bus.serve("test.same", AbortRequests, answer)
    with pytest.raises(BusError, match="nothing to reverse") as refused:
        await bus.request("test.same", AbortRequests([]), AbortRequests)
    assert not isinstance(refused.value, NoResponderError)
    with pytest.raises(BusError, match="Expected `object`"):
        await bus.request("test.same", 1, AbortRequests)
    with pytest.raises(BusError, match="Expected `int`"):
        await bus.request("test.same", AbortRequests(["a"]), int)
    assert bus.num_failed == 2
    refused_log, unforeseen_log = sorted(caplog.records, key=lambda record: record.levelno)
    assert (refused_log.levelname, refused_log.exc_info) == ("WARNING", None)
    assert unforeseen_log.levelname == "ERROR" and unforeseen_log.exc_info


async def test_messages_that_nobody_was_fast_enough_for_are_counted(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """What waits behind one that is handled is bounded; what comes beyond it is lost."""
    seen: asyncio.Queue[str] = asyncio.Queue()
    go_on = asyncio.Event()

    async def handler(message: AbortRequests) -> None:
        await go_on.wait()
        seen.put_nowait(message.request_ids[0])

    subscription = await bus.subscribe("test.in.*", AbortRequests, handler)
    assert isinstance(subscription, Listener)
    subscription._hearing.subscription._subscription._pending_bytes_limit = 100
    last: asyncio.Queue[AbortRequests] = asyncio.Queue()
    await bus.subscribe("test.last", AbortRequests, last.put)
    for number in range(9):
        await bus.publish("test.in.slow", AbortRequests([str(number)]))
    await bus.publish("test.last", AbortRequests([]))
    await asyncio.wait_for(last.get(), 10)
    bus._tell_dropped()
    (record,) = caplog.records
    told = record.levelname, vars(record)["subject"], vars(record)["messages"]
    assert told == ("ERROR", "test.in.*", bus.num_dropped)
    go_on.set()
    async with asyncio.timeout(60):
        handled = [await seen.get() for _ in range(9 - bus.num_dropped)]
    assert handled == [str(number) for number in range(len(handled))] and len(handled) < 9


async def test_a_subject_stores_one_result(bus: Bus) -> None:
    first = OfflineResult("batch_1.1", [1, 2], FinishReason.STOP)
    second = OfflineResult("batch_1.1", [3], FinishReason.STOP)
    assert await bus.store(WORK.result("batch_1.1"), first)
    assert not await bus.store(WORK.result("batch_1.1"), second)
    stored = [s async for s in bus.read(subjects.RESULTS_STREAM, WORK.batch_results("batch_1"), OfflineResult)]
    assert [s.message for s in stored] == [first]


async def test_what_a_full_stream_refuses_is_not_taken_for_stored(bus: Bus) -> None:
    config = (await bus._js.stream_info(subjects.RESULTS_STREAM)).config
    await bus._js.update_stream(dataclasses.replace(config, max_msgs=1))
    results = [OfflineResult(f"batch_1.{line}", [], FinishReason.STOP) for line in (1, 2)]
    assert await bus.store(WORK.result("batch_1.1"), results[0])
    with pytest.raises(BusError, match="maximum messages exceeded"):
        await bus.store(WORK.result("batch_1.2"), results[1])
    assert not await bus.store(WORK.result("batch_1.1"), results[0])


async def test_read_ends_and_follow_goes_on(bus: Bus) -> None:
    pairs = [(WORK.result(f"batch_1.{n}"), OfflineResult(f"batch_1.{n}", [n], FinishReason.STOP)) for n in range(700)]
    await bus.store_many(list(pairs))
    read = [s.message async for s in bus.read(subjects.RESULTS_STREAM, WORK.batch_results("batch_1"), OfflineResult)]
    assert [m.output_token_ids for m in read] == [[n] for n in range(700)]
    nothing = [s async for s in bus.read(subjects.RESULTS_STREAM, WORK.batch_results("batch_2"), OfflineResult)]
    assert nothing == []

    seen = 0
    async for stored in bus.follow(subjects.RESULTS_STREAM, WORK.all_results, OfflineResult):
        if stored is None:
            assert seen == 700
            await bus.store(WORK.result("batch_3.1"), OfflineResult("batch_3.1", [], FinishReason.LENGTH))
            continue
        seen += 1
        if stored.message.request_id == "batch_3.1":
            break
    assert seen == 701


async def test_who_has_read_leaves_nothing_behind(bus: Bus) -> None:
    """A server has room for so many consumers of a stream; a read that breaks off takes none either."""
    await bus.store(WORK.result("batch_1.1"), OfflineResult("batch_1.1", [1], FinishReason.STOP))
    for _ in range(1200):
        async with contextlib.aclosing(bus.read_raw(subjects.RESULTS_STREAM, ">")) as reading:
            await anext(reading)
    await until(lambda: has_consumers(bus, 0))


async def has_consumers(bus: Bus, number: int) -> bool:
    return (await bus.size(subjects.RESULTS_STREAM)).consumers == number


async def test_read_ends_where_the_rest_is_purged_meanwhile(bus: Bus) -> None:
    pairs = [(WORK.result(f"batch_1.{n}"), OfflineResult(f"batch_1.{n}", [n], FinishReason.STOP)) for n in range(600)]
    await bus.store_many(list(pairs))
    seen = 0
    async for _ in bus.read(subjects.RESULTS_STREAM, WORK.batch_results("batch_1"), OfflineResult):
        seen += 1
        if seen == 1:
            await bus.purge(subjects.RESULTS_STREAM, WORK.batch_results("batch_1"))
    assert 1 <= seen < 600


async def test_large_messages_are_not_all_fetched_at_once(bus: Bus) -> None:
    data, num_messages = bytes(1_000_000), FETCH_BYTES // 1_000_000 + 8
    for number in range(num_messages):
        await bus.store_raw(WORK.result(f"batch_1.{number}"), data, {})
    before = bus._client.stats["in_bytes"]
    async with contextlib.aclosing(bus.read_raw(subjects.RESULTS_STREAM, WORK.all_results)) as raws:
        await anext(raws)
        assert bus._client.stats["in_bytes"] - before <= FETCH_BYTES
        assert [raw.subject async for raw in raws] == [
            WORK.result(f"batch_1.{number}") for number in range(1, num_messages)
        ]


async def test_deleting_stored_messages(bus: Bus) -> None:
    for number in range(3):
        await bus.store(WORK.result(f"batch_1.{number}"), OfflineResult(f"batch_1.{number}", [], FinishReason.STOP))
    stored = [s async for s in bus.read(subjects.RESULTS_STREAM, WORK.all_results, OfflineResult)]
    await bus.delete_stored(subjects.RESULTS_STREAM, stored[1].sequence)
    await bus.delete_stored(subjects.RESULTS_STREAM, stored[1].sequence)
    left = [s.subject async for s in bus.read(subjects.RESULTS_STREAM, WORK.all_results, OfflineResult)]
    assert left == [WORK.result("batch_1.0"), WORK.result("batch_1.2")]
    with pytest.raises(BusError):
        await bus.delete_stored("NO_SUCH_STREAM", 1)
    await bus.purge(subjects.RESULTS_STREAM, WORK.batch_results("batch_1"))
    assert [s async for s in bus.read(subjects.RESULTS_STREAM, WORK.all_results, OfflineResult)] == []


async def test_bucket_compare_and_set(bus: Bus) -> None:
    bucket = await bus.bucket(subjects.FILES_BUCKET, FileObject)
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
    bucket = await bus.bucket(subjects.FILES_BUCKET, FileObject)
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
    await objects.put("file-3", data)
    await bus.purge(STREAM, f"{CHUNKS}{(await objects._store.get_info('file-3')).nuid}")
    with pytest.raises(NotFoundOnBusError, match="file-3 has 0 of 1048576 bytes"):
        _ = [chunk async for chunk in objects.chunks("file-3")]


async def test_entries_are_whole_while_many_read_and_write(bus: Bus) -> None:
    bucket = await bus.bucket(subjects.FILES_BUCKET, FileObject)
    keys = [f"file-{number}" for number in range(20)]
    for key in keys:
        await bucket.put(key, file_record(key))

    async def write(key: str) -> None:
        for size in itertools.count(2):
            check_cancelled()
            await bucket.put(key, file_record(key, size))

    async def watched() -> list[str]:
        seen: dict[str, None] = {}
        async for entry in bucket.watch():
            if entry is None:
                break
            seen[entry.key] = None
        return list(seen)

    async def read() -> list[list[str]]:
        found = []
        for _ in range(10):
            found.append(sorted(entry.key for entry in await bucket.entries()))
            found.append(sorted(await watched()))
        return found

    writers = [asyncio.create_task(write(key)) for key in keys]
    try:
        seen = await asyncio.gather(*(read() for _ in range(5)))
    finally:
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
    assert all(found == sorted(keys) for reads in seen for found in reads)


async def test_entries_are_decoded_beside_other_work(bus: Bus) -> None:
    """A stack keeps its batches for a month."""
    num_turns = 0
    decoded_in: set[int] = set()

    class Record(msgspec.Struct):
        number: int

        def __post_init__(self) -> None:
            decoded_in.add(num_turns)

    bucket = await bus.bucket("test_many", Record)
    await asyncio.gather(*(bucket.put(f"key-{number}", Record(number)) for number in range(600)))
    decoded_in.clear()
    reading = asyncio.create_task(bucket.entries())
    while not reading.done():
        num_turns += 1
        await asyncio.sleep(0)
    assert [entry.revision for entry in reading.result()] == list(range(1, 601))
    assert len(decoded_in) > 1


async def test_a_record_of_another_version_is_as_good_as_deleted(bus: Bus) -> None:
    old = await bus.bucket("test_versions", AbortRequests)
    await old.put("a", AbortRequests(["x"]))
    bucket = await bus.bucket("test_versions", FileObject)
    await bucket.put("b", file_record("b"))
    seen: list[tuple[str, bool]] = []
    async for entry in bucket.watch():
        if entry is None:
            break
        seen.append((entry.key, entry.value is None))
    assert seen == [("a", True), ("b", False)]


async def test_a_message_that_cannot_be_sent_is_an_error_or_dropped(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    closed = await Bus.connect(nats_url, "closed")
    await closed.close()
    with pytest.raises(BusError, match=r"publish test\.in"):
        await closed.publish("test.in", AbortRequests([]))
    await closed.publish_or_drop("test.in", AbortRequests([]))
    dropped = [record for record in caplog.records if record.message == "message dropped"]
    assert [vars(record)["subject"] for record in dropped] == ["test.in"]


async def test_a_cancellation_that_comes_with_the_reconnect_is_not_lost(bus: Bus) -> None:
    waiting = asyncio.create_task(bus.wait_reconnected(bus.reconnects, 60.0))
    await asyncio.sleep(0)  # it waits now
    for tell in list(bus._on_reconnect):
        tell()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_an_object_grows_by_whole_lines(bus: Bus) -> None:
    objects = await bus.objects()
    growing = objects.growing("file-1-output")
    assert [piece async for piece in growing.recover()] == []
    long = b"x" * 300_000 + b"\n"
    await growing.append(b"a\n" * 100_000)
    first_size = growing.size
    await growing.append(long)
    assert b"".join([chunk async for chunk in objects.chunks("file-1-output")]) == b"a\n" * 100_000 + long
    shown = b"".join([chunk async for chunk in objects.chunks("file-1-output", first_size)])
    assert shown == b"a\n" * 100_000  # as it was when somebody asked for its size
    again = objects.growing("file-1-output")
    with pytest.raises(BusError):
        await again.append(b"of a second writer\n")


async def test_a_writer_learns_that_its_object_was_deleted(bus: Bus) -> None:
    objects = await bus.objects()
    growing = objects.growing("file-1-output")
    await growing.check()
    await growing.append(b"first\n")
    await growing.append(b"second\n")
    await growing.check()
    await objects.delete("file-1-output")
    with pytest.raises(BusError, match="file-1-output was changed"):
        await growing.check()


async def test_what_a_kill_left_of_a_line_is_removed(bus: Bus) -> None:
    objects = await bus.objects()
    growing = objects.growing("file-1-output")
    await growing.append(b"first\n")
    await bus.store_raw(f"{CHUNKS}file-1-output", b"y" * 1000, {})
    await bus.store_raw(f"{CHUNKS}file-1-output", b"y" * 1000, {})
    again = objects.growing("file-1-output")
    assert b"".join([piece async for piece in again.recover()]) == b"first\n"
    await again.append(b"second\n")
    assert b"".join([chunk async for chunk in objects.chunks("file-1-output")]) == b"first\nsecond\n"
    store = await bus._js.object_store(subjects.OBJECTS_BUCKET)
    assert (await store.get("file-1-output")).data == b"first\nsecond\n"  # nats-py checks the digest


def test_a_connection_that_has_just_gone_is_closed_quietly(nats_url: str) -> None:
    async def close_what_is_lost() -> None:
        lost = await Bus.connect(nats_url, "test")
        lost._client._transport.close()
        await lost.publish("test.lost", AbortRequests([]))
        await lost.close()

    uvloop.run(close_what_is_lost())
