"""JetStream as the bus stands on it: what is stored, kept, refused, and delivered again."""

import asyncio
import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
import pytest
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, KeyValueConfig, RetentionPolicy, StreamConfig

from shared.bus import Bus, connection, pulls
from shared.bus.objects import CHUNKS, STREAM
from shared.errors import BusError, ConflictError, NotFoundOnBusError
from shared.protocol import subjects
from shared.protocol.offline.batches import FileObject
from shared.protocol.offline.requests import OfflineResult
from shared.protocol.sampling import FinishReason
from tests.shared.bus.servers import RealServer, Server, running, until

WORK = subjects.of_model("m")  # what is stored is of this model

EXPLICIT = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=0.3)


async def stream(bus: Bus, **config: object) -> None:
    await bus._js.add_stream(StreamConfig(**({"name": "TEST", "subjects": ["test.>"]} | config)))


async def held(bus: Bus) -> list[str]:
    return [raw.subject.removeprefix("test.") async for raw in bus.read_raw("TEST", "test.>")]


async def holds(bus: Bus, num_messages: int) -> bool:
    return (await bus.size("TEST")).messages == num_messages


async def has_chunks_of(bus: Bus, num_objects: int) -> bool:
    return len(await bus.subjects(STREAM, f"{CHUNKS}>")) >= num_objects


async def refused(bus: Bus, **headers: str) -> str:
    with pytest.raises(BusError) as error:
        await bus.store_raw("test.a", b"", {name.replace("_", "-"): value for name, value in headers.items()})
    return str(error.value)


async def test_what_is_not_acknowledged_in_time_comes_again(bus: Bus) -> None:
    await stream(bus)
    consumer = await bus._js.pull_subscribe("test.>", durable="reader", config=dataclasses.replace(EXPLICIT))
    for name in "ab":
        await bus.store_raw(f"test.{name}", name.encode(), {})
    first = await consumer.fetch(2, timeout=5)
    await first[0].ack_sync()
    (again,) = await consumer.fetch(1, timeout=5)
    assert (again.data, again.metadata.num_delivered) == (b"b", 2)
    await again.ack_sync()
    with pytest.raises(TimeoutError):
        await consumer.fetch(1, timeout=0.5)
    await consumer.unsubscribe()


async def test_what_is_refused_comes_again_at_once(bus: Bus) -> None:
    await stream(bus)
    config = dataclasses.replace(EXPLICIT, ack_wait=600.0)
    consumer = await bus._js.pull_subscribe("test.>", durable="reader", config=config)
    await bus.store_raw("test.a", b"a", {})
    (first,) = await consumer.fetch(1, timeout=5)
    await first.nak()
    (again,) = await consumer.fetch(1, timeout=5)
    assert (again.data, again.metadata.num_delivered) == (b"a", 2)
    await again.ack_sync()
    await consumer.unsubscribe()


async def test_no_more_are_delivered_than_may_wait_to_be_acknowledged(bus: Bus) -> None:
    await stream(bus)
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=2)
    consumer = await bus._js.pull_subscribe("test.>", durable="reader", config=config)
    for number in range(4):
        await bus.store_raw(f"test.{number}", b"", {})

    async def fetch(at_least: int) -> list[Msg]:
        messages: list[Msg] = []
        while len(messages) < at_least:
            with contextlib.suppress(TimeoutError):
                messages += await consumer.fetch(4, timeout=0.3)
        return messages

    two = await fetch(2)
    with pytest.raises(TimeoutError):
        await consumer.fetch(4, timeout=0.3)
    await two[0].ack_sync()
    assert [msg.subject for msg in (*two, *(await fetch(1)))] == ["test.0", "test.1", "test.2"]
    await consumer.unsubscribe()


async def test_a_message_id_is_stored_once(bus: Bus) -> None:
    """Within a time, which is counted from the first."""
    await stream(bus, duplicate_window=1.0)
    sequences = [await bus.store_raw(f"test.{name}", b"", {"Nats-Msg-Id": "one"}) for name in "ab"]
    assert sequences == [1, 1]

    async def is_stored() -> bool:
        return await bus.store_raw("test.c", b"", {"Nats-Msg-Id": "one"}) == 2

    await until(is_stored)
    assert await held(bus) == ["a", "c"]


async def test_a_message_may_ask_for_what_the_stream_holds(bus: Bus) -> None:
    await stream(bus)
    await bus.store_raw("test.a", b"", {"Nats-Expected-Last-Sequence": "0"})
    assert "wrong last sequence: 1" in await refused(bus, Nats_Expected_Last_Sequence="0")
    await bus.store_raw("test.b", b"", {"Nats-Expected-Last-Subject-Sequence": "0"})
    assert "wrong last sequence: 1" in await refused(bus, Nats_Expected_Last_Subject_Sequence="2")
    assert "expected stream does not match" in await refused(bus, Nats_Expected_Stream="OTHER")
    assert "wrong last msg ID" in await refused(bus, Nats_Expected_Last_Msg_Id="x")
    await bus.store_raw("test.a", b"", {"Nats-Expected-Last-Subject-Sequence": "1"})
    assert await held(bus) == ["a", "b", "a"]


async def test_the_oldest_make_room(bus: Bus) -> None:
    await stream(bus, max_msgs=3, max_msgs_per_subject=2)
    for name in "aaab":
        await bus.store_raw(f"test.{name}", b"", {})
    assert await held(bus) == ["a", "a", "b"]
    await bus.store_raw("test.c", b"", {})
    assert await held(bus) == ["a", "b", "c"]
    size = await bus.size("TEST")
    assert (size.messages, size.bytes) == (3, 3 * (30 + len("test.a") + 4 + len(b"NATS/1.0\r\n\r\n")))


async def test_a_full_stream_refuses_where_it_keeps_the_old(bus: Bus) -> None:
    await stream(bus, max_bytes=120, discard=DiscardPolicy.NEW, max_msg_size=52)
    assert "message size exceeds maximum allowed" in await _too_large(bus)
    await bus.store_raw("test.a", b"x" * 40, {})
    with pytest.raises(BusError, match="maximum bytes exceeded"):
        await bus.store_raw("test.b", b"x" * 40, {})
    await bus.purge("TEST", "test.a")
    await bus.store_raw("test.b", b"x" * 40, {})
    assert await held(bus) == ["b"]


async def _too_large(bus: Bus) -> str:
    with pytest.raises(BusError) as error:
        await bus.store_raw("test.a", b"x" * 51, {})
    return str(error.value)


async def test_what_is_too_old_goes(bus: Bus) -> None:
    await stream(bus, max_age=1.5)
    for name in "ab":
        await bus.store_raw(f"test.{name}", b"", {})
    assert await held(bus) == ["a", "b"]
    await until(lambda: holds(bus, 0))
    assert await bus.store_raw("test.c", b"", {}) == 3


@pytest.mark.parametrize("retention", [RetentionPolicy.WORK_QUEUE, RetentionPolicy.INTEREST])
async def test_what_is_acknowledged_goes_where_it_is_kept_for_readers(bus: Bus, retention: RetentionPolicy) -> None:
    await stream(bus, retention=retention)
    consumer = await bus._js.pull_subscribe("test.a", durable="reader", config=dataclasses.replace(EXPLICIT))
    for name in "ab":
        await bus.store_raw(f"test.{name}", b"", {})
    for_nobody = 0 if retention == RetentionPolicy.INTEREST else 1
    assert (await bus.size("TEST")).messages == 1 + for_nobody
    (msg,) = await consumer.fetch(1, timeout=5)
    await msg.ack_sync()
    await until(lambda: holds(bus, for_nobody))


async def test_a_key_ends_with_its_time(bus: Bus) -> None:
    bucket = await bus._js.create_key_value(KeyValueConfig(bucket="short", ttl=0.6))
    await bucket.put("a", b"1")
    assert (await bucket.get("a")).value == b"1"
    async with asyncio.timeout(30):
        with pytest.raises(nats.js.errors.KeyNotFoundError):
            while True:
                await bucket.get("a")
                await asyncio.sleep(0.05)
    await bucket.create("a", b"2")


async def test_a_lost_race_for_a_key_tells_so(bus: Bus) -> None:
    bucket = await bus.bucket(subjects.FILES_BUCKET, FileObject)
    file = FileObject(id="file-1", bytes=0, created_at=1, filename="a.jsonl", purpose="batch")
    await bucket.put("file-1", file)

    async def grow() -> None:
        await bucket.edit("file-1", _grown)

    await asyncio.gather(*(grow() for _ in range(20)))
    entry = await bucket.get("file-1")
    assert entry.value is not None and entry.value.bytes == 20
    with pytest.raises(ConflictError):
        await bucket.delete("file-1", entry.revision - 1)
    await (await bus.bucket(subjects.FILES_BUCKET, int)).put("file-2", 2)
    assert [await bucket.has(f"file-{number}") for number in range(3)] == [False, True, True]
    await bucket.delete("file-1", entry.revision)
    await bucket.delete("file-2")
    assert await bucket.keys() == set() and not await bucket.has("file-1")
    deletions = await bucket.deletions(before_s=4e9)
    assert deletions.keys() == {"file-1", "file-2"} and await bucket.deletions(before_s=0.0) == {}
    await bucket.create("file-1", file)
    await bucket.delete("file-1")
    await bucket.create("file-2", file)
    await bucket.forget(deletions)
    assert (await bucket.deletions(before_s=4e9)).keys() == {"file-1"} and await bucket.keys() == {"file-2"}


def _grown(file: FileObject) -> FileObject:
    return FileObject(
        id=file.id, bytes=file.bytes + 1, created_at=file.created_at, filename=file.filename, purpose=file.purpose
    )


async def test_a_watch_goes_on_over_a_restart_in_order(server: Server, bus: Bus, nats_url: str) -> None:
    bucket = await bus.bucket("test_numbers", int)
    other = await Bus.connect(nats_url, "writer")
    numbers = await other.bucket("test_numbers", int)
    seen: list[int] = []
    done = asyncio.Event()

    def tell(key: str, value: int | None) -> None:
        if value is not None:
            seen.append(value)
        if value == 30:
            done.set()

    following = asyncio.create_task(bucket.follow(tell))
    for number in range(1, 31):
        await numbers.put("n", number)
        if number in (10, 20):
            before = other.reconnects, bus.reconnects
            server.kill()
            server.start()
            await other.wait_reconnected(before[0], 20)
            await bus.wait_reconnected(before[1], 20)
    await asyncio.wait_for(done.wait(), 20)
    following.cancel()
    assert seen == sorted(seen) and seen[-1] == 30
    await other.close()


async def test_who_finds_no_room_to_read_waits_for_those_who_have_read(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stream(bus, max_consumers=1)
    await bus.store_raw("test.a", b"", {})
    first = bus.read_raw("TEST", "test.>")
    await anext(first)
    refused, add = asyncio.Event(), bus._js.add_consumer

    async def add_consumer(*wanted: Any) -> Any:
        try:
            return await add(*wanted)
        except nats.js.errors.APIError:
            refused.set()
            raise

    monkeypatch.setattr(bus._js, "add_consumer", add_consumer)
    second = asyncio.create_task(held(bus))
    await refused.wait()
    await first.aclose()
    assert await asyncio.wait_for(second, 30) == ["a"]


async def test_a_watch_goes_on_as_soon_as_the_server_is_back(
    server: Server, bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait until it misses the words of a server that has forgotten it."""
    monkeypatch.setattr(pulls, "LATE_S", 3600.0)
    bucket = await bus.bucket("test_numbers", int)
    watching = bucket.watch()
    assert await anext(watching) is None
    coming = asyncio.create_task(anext(watching))
    await asyncio.sleep(0)
    before = bus.reconnects
    server.kill()
    server.start()
    await bus.wait_reconnected(before, 20)
    await bucket.put("n", 1)
    entry = await asyncio.wait_for(coming, 20)
    assert entry is not None and entry.value == 1


async def test_what_there_is_is_asked_for_until_the_server_is_back(server: Server, nats_url: str) -> None:
    bus = await Bus.connect(nats_url, "test")
    bus._js._timeout = 0.1  # while nobody answers
    server.kill()
    await until(lambda: not bus.is_connected)
    asked = asyncio.gather(bus.ensure_streams(), bus.bucket("test_numbers", int), bus.objects())
    await until(lambda: bus._client.stats["out_msgs"] >= 6)  # each was asked for again
    bus._js._timeout = connection.OPERATION_TIMEOUT_S
    server.start()
    _, bucket, objects = await asyncio.wait_for(asked, 20)
    await bucket.put("n", 1)
    assert (await bucket.get("n")).value == 1 and await objects.all() == {}
    assert (await bus.size(subjects.REQUESTS_STREAM)).messages == 0
    await bus.close()


async def test_what_fails_while_a_connection_is_made_again_is_done_again(
    server: Server, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, told, flush, num_tries = asyncio.Event(), asyncio.Event(), bus._client.flush, 0

    async def flush_late() -> None:
        made.set()
        await told.wait()
        await flush()

    async def ask() -> int:
        nonlocal num_tries
        num_tries += 1
        if num_tries == 1:
            raise BusError("no answer")
        return num_tries

    server.kill()
    await until(lambda: not bus.is_connected)
    monkeypatch.setattr(bus._client, "flush", flush_late)
    server.start()
    await made.wait()
    asking = asyncio.create_task(bus.through_reconnects(ask))
    await until(lambda: num_tries == 1)
    told.set()
    assert await asyncio.wait_for(asking, 20) == 2


async def test_who_may_not_send_for_a_while_asks_when_it_may(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "AGAIN_S", 0.01)
    refused: list[str] = []

    def may_send(subject: str) -> bool:
        refused.append(subject)
        return len(refused) > 3

    bus.fence(may_send)
    assert await (await asyncio.wait_for(bus.bucket("test_numbers", int), 20)).keys() == set()
    assert len(refused) > 3


async def test_what_a_dead_server_was_asked_is_asked_again(server: Server, bus: Bus) -> None:
    asked, number = asyncio.Event(), 0

    async def ask() -> int:
        nonlocal number
        number += 1
        if number == 1:
            asked.set()
            await asyncio.Event().wait()  # as for an answer that nobody gives any more
        return number

    asking = asyncio.create_task(bus.through_reconnects(ask))
    await asked.wait()
    server.kill()
    server.start()
    assert await asyncio.wait_for(asking, 20) == 2


async def test_what_was_stored_outlives_a_kill(server: Server, bus: Bus) -> None:
    """A kill of the process: what it wrote, the operating system has."""
    results = [OfflineResult(f"batch_1.{line}", [line], FinishReason.STOP) for line in range(40)]
    await bus.store_many([(WORK.result(result.request_id), result) for result in results])
    before = bus.reconnects
    server.kill()
    server.start()
    await bus.wait_reconnected(before, 20)
    read = bus.read(subjects.RESULTS_STREAM, WORK.batch_results("batch_1"), OfflineResult)
    assert [stored.message for stored in [each async for each in read]] == results
    assert not await bus.store(WORK.result("batch_1.0"), results[0])


@pytest.mark.slow
async def test_an_object_that_a_kill_cut_short_is_none(server: Server, bus: Bus) -> None:
    """Its chunks are there, and swept."""
    objects = await bus.objects()
    whole = b"w" * 300_000
    await objects.put("file-1", whole)
    putting = asyncio.create_task(objects.put("file-2", b"x" * 128 * 1024 * 40))
    await until(lambda: has_chunks_of(bus, 2))
    before = bus.reconnects
    putting.cancel()
    server.kill()
    await asyncio.gather(putting, return_exceptions=True)
    server.start()
    await bus.wait_reconnected(before, 20)
    with pytest.raises(NotFoundOnBusError):
        _ = [chunk async for chunk in objects.chunks("file-2")]
    assert list(await objects.all()) == ["file-1"]
    unneeded = await objects.unneeded()
    assert len(unneeded) in (0, 1)  # none, where nats-py had time to remove them
    await objects.remove_unneeded(unneeded)
    assert await objects.unneeded() == {}
    assert await bus.subjects(STREAM, f"{CHUNKS}>") != set()
    assert b"".join([chunk async for chunk in objects.chunks("file-1")]) == whole


async def test_subjects_of_several_pages_are_all_told_while_others_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulation.nats.jetstream.api.MOST_SUBJECTS", 20)
    with running("memory", Path()) as server:
        bus = await Bus.connect(server.url, "test")
        await stream(bus)
        stays = [f"test.b{number:03}" for number in range(50)]
        for name in ["test.a1", "test.a2", *stays]:
            await bus.store_raw(name, b"", {})
        ask, num_asked = bus._ask, 0

        async def ask_and_change(*what: Any) -> Any:
            nonlocal num_asked
            num_asked += 1
            reply = await ask(*what)
            if num_asked == 1:
                await bus.purge("TEST", "test.a1")
                await bus.purge("TEST", "test.a2")
            elif num_asked == 2:
                for number in range(5):
                    await bus.store_raw(f"test.0{number}", b"", {})
            return reply

        monkeypatch.setattr(bus, "_ask", ask_and_change)
        async with asyncio.timeout(20):
            assert await bus.subjects("TEST", "test.>") >= {*stays}
        assert num_asked < 6
        await bus.close()


async def test_a_server_that_stores_nothing_is_told_of() -> None:
    server = RealServer(None)
    try:
        bus = await Bus.connect(server.url, "test")
        for storing in (bus.bucket("test_numbers", int), bus.ensure_streams(), bus.objects()):
            with pytest.raises(BusError, match="JetStream does not answer"):
                await storing
        await bus.close()
    finally:
        server.kill()
