"""Kills at every stage: each custom_id has one result in the end, and nothing is run that has its result."""

import asyncio
import base64
import contextlib
import random
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from nats.js.api import Header

from services.gateway.store import FileStore
from services.gateway.tenants import Tenant
from services.local.stack.machine import free_port
from services.offline_queue.batches import ingest, life
from services.offline_queue.batches import lines as batch_lines
from services.offline_queue.batches import records as batch_records
from services.offline_queue.batches.files import BatchOutputs
from services.offline_queue.batches.lines import BatchLine, LineSpool, lines_object
from services.offline_queue.batches.manager import BatchManager
from shared.bus import Bus, GrowingObject, Objects
from shared.bus.objects import CHUNKS, DESCRIPTIONS, STREAM
from shared.errors import NotFoundOnBusError
from shared.protocol import subjects
from shared.protocol.offline.batches import BatchRecord, FileRecord
from shared.protocol.offline.requests import OfflineRequest, OfflineResult
from shared.protocol.sampling import FinishReason
from tests.conftest import nats_server_binary, wait_for_port
from tests.services.offline_queue.batch_desk import (
    ENDLESS,
    MODEL,
    TIMEOUT_S,
    TOKENIZER,
    WORK,
    Desk,
    ManualClock,
    StoringPool,
    answer_text,
    chat_line,
)
from tests.shared.bus.servers import until

FULL_DISK = Path("/dev/full")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def assert_complete(desk: Desk, record: BatchRecord, ids: list[str]) -> None:
    """All is answered, once; nothing is left in the streams."""
    counts = record.request_counts
    assert (record.status, counts.total, counts.completed, counts.failed) == ("completed", len(ids), len(ids), 0)
    lines = await desk.read_file(record.output_file_id)
    texts = {line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in lines}
    assert texts == {each: answer_text(each) for each in ids}
    assert len(lines) == len(ids)
    assert record.error_file_id is None
    assert await desk.stored_requests(record.id) == []
    assert await desk.stored_results(record.id) == []


async def taken_up(desk: Desk, clock: ManualClock) -> tuple[BatchManager, StoringPool]:
    """By a manager that only starts, and a pool that runs nothing."""
    pool = StoringPool(desk.bus, permits=0)
    manager = BatchManager(desk.bus, MODEL.name, TOKENIZER, MODEL, pool, clock)
    await manager.start()
    return manager, pool


async def until_stored(bus: Bus, number: int) -> None:
    """So many requests are in the stream."""
    seen = 0
    async with asyncio.timeout(TIMEOUT_S):
        async for stored in bus.follow(subjects.REQUESTS_STREAM, subjects.ALL_REQUESTS, OfflineRequest):
            seen += stored is not None
            if seen == number:
                return


async def test_killed_while_it_reads_the_file(desk: Desk) -> None:
    ids = [f"request {number}" for number in range(2000)]
    batch_id = await desk.submit([chat_line(each) for each in ids])
    async with desk.running() as (_, pool):
        await until_stored(desk.bus, 100)
        assert pool.added == []
    record = (await desk.batches.get(batch_id)).value
    assert record is not None
    assert record.status == "validating"
    async with desk.running() as (_, pool):
        record = await desk.until_cleared(batch_id)
        assert pool.added == [f"{batch_id}.{line}" for line in range(1, 2001)]
    await assert_complete(desk, record, ids)


async def test_killed_between_the_last_store_and_the_record(desk: Desk) -> None:
    """Stored requests of a batch that is still validating are not trusted: here one is of another file."""
    batch_id = await desk.submit([chat_line("a"), chat_line("b")])
    stale = OfflineResult(f"{batch_id}.1", [], FinishReason.ERROR, error="stale")
    await desk.bus.store(WORK.result(stale.request_id), stale)
    async with desk.running():
        record = await desk.until_cleared(batch_id)
    await assert_complete(desk, record, ["a", "b"])


async def test_killed_with_some_results(desk: Desk) -> None:
    ids = [str(number) for number in range(20)]
    first = await desk.submit([chat_line(each) for each in ids])
    async with desk.running(permits=7):
        await desk.until(first, lambda record: record.request_counts.completed == 7)
    second = await desk.submit([chat_line(each) for each in ids])
    async with desk.running(permits=0) as (_, pool):
        await desk.until_status(second, "in_progress")
        await pool.until(lambda: len(pool.waiting) == 33)
    async with desk.running(permits=6) as (_, pool):
        assert pool.added == [f"{first}.{line}" for line in range(8, 21)] + [f"{second}.{n}" for n in range(1, 21)]
        await desk.until(first, lambda record: record.request_counts.completed == 13)
    async with desk.running():
        for batch_id in (first, second):
            await assert_complete(desk, await desk.until_cleared(batch_id), ids)


async def test_results_that_came_while_nobody_was_there(desk: Desk) -> None:
    """The executor goes on without the offline-queue; leftover requests of its results do not run again."""
    ids = [str(number) for number in range(8)]
    batch_id = await desk.submit([chat_line(each) for each in ids])
    async with desk.running(permits=0):
        await desk.until_status(batch_id, "in_progress")
    for line in (2, 5):
        result = OfflineResult(f"{batch_id}.{line}", TOKENIZER.encode(answer_text(ids[line - 1])), FinishReason.STOP)
        await desk.bus.store(WORK.result(result.request_id), result)
    async with desk.running(permits=0) as (_, pool):
        assert pool.added == [f"{batch_id}.{line}" for line in (1, 3, 4, 6, 7, 8)]
        await desk.until(batch_id, lambda record: record.request_counts.completed == 2)
        assert await desk.stored_requests(batch_id) == pool.added
    async with desk.running():
        await assert_complete(desk, await desk.until_cleared(batch_id), ids)


async def test_killed_while_it_writes_the_files(desk: Desk) -> None:
    ids = [f"request {number}" for number in range(1500)]
    batch_id = await desk.submit([chat_line(each) for each in ids])
    async with desk.running() as (_, pool):
        record = await desk.until_status(batch_id, "finalizing")
    record = (await desk.batches.get(batch_id)).value or record
    assert record.status == "finalizing"
    async with desk.running(permits=0) as (_, pool):
        record = await desk.until_cleared(batch_id)
        assert pool.added == []
    await assert_complete(desk, record, ids)


async def test_killed_between_the_files_and_the_record(desk: Desk) -> None:
    """What an earlier attempt wrote stays, as far as it is whole lines, and nothing comes twice."""
    ids = ["a", "b", "c"]
    batch_id = await desk.submit([chat_line(each) for each in ids])
    async with desk.running(permits=2):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 2)
        await until_size(desk, "file-1-output", lines=2)
    before = await desk.read_file("file-1-output")
    await desk.bus.store_raw(f"{CHUNKS}file-1-output", b'{"id":"batch_req_1_3","custom', {})
    async with desk.running():
        record = await desk.until_cleared(batch_id)
    await assert_complete(desk, record, ids)
    assert record.output_file_id == "file-1-output"
    assert (await desk.read_file("file-1-output"))[:2] == before
    assert {entry.key for entry in await desk.files.entries()} == {"file-1", "file-1-output"}


async def test_a_client_deletes_the_output_while_it_grows(desk: Desk) -> None:
    """As any deletion it is obeyed; the results are still in the stream, and the batch ends with all of them."""
    ids = ["a", "b", "c"]
    batch_id = await desk.submit([chat_line(each) for each in ids])
    async with desk.running(permits=2) as (_, pool):
        await until_size(desk, "file-1-output", lines=2)
        await desk.files.delete("file-1-output")
        await desk.objects.delete("file-1-output")
        pool.permits.release()
        record = await desk.until_cleared(batch_id)
    await assert_complete(desk, record, ids)


async def test_a_client_deletes_the_output_after_its_last_line(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line(each) for each in "abc"])
    async with desk.running(permits=2):
        await until_size(desk, "file-1-output", lines=2)
        await desk.files.delete("file-1-output")
        await desk.objects.delete("file-1-output")
        await desk.cancel(batch_id)
        record = await desk.until_cleared(batch_id)
    counts = record.request_counts
    assert (record.status, counts.completed, counts.failed) == ("cancelled", 2, 0)
    assert [line["custom_id"] for line in await desk.read_file(record.output_file_id)] == ["a", "b"]
    assert set(await desk.results(record)) == set("abc")


async def test_a_client_deletes_the_output_while_it_is_closed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    batch_id = await desk.submit([chat_line("a")])
    describe, num_described = GrowingObject.describe, 0

    async def describe_late(file: GrowingObject) -> None:
        nonlocal num_described
        num_described += 1
        if num_described == 2:  # the first was with its only line
            await desk.files.delete("file-1-output")
            await desk.objects.delete("file-1-output")
        await describe(file)

    monkeypatch.setattr(GrowingObject, "describe", describe_late)
    async with desk.running():
        await assert_complete(desk, await desk.until_cleared(batch_id), ["a"])


async def test_a_client_deletes_the_output_as_its_batch_ends(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes go when the offline-queue has seen them for the last time, the record went just before."""
    files = FileStore(await desk.bus.bucket(subjects.FILES_BUCKET, FileRecord), desk.clock, await desk.bus.objects())
    batch_id = await desk.submit([chat_line("a")])
    describe, num_described = GrowingObject.describe, 0
    delete_object, deletions = files.objects.delete, []
    record_is_gone, ended = asyncio.Event(), asyncio.Event()

    async def delete_late(name: str) -> None:
        record_is_gone.set()
        await ended.wait()
        await delete_object(name)

    async def describe_late(file: GrowingObject) -> None:
        nonlocal num_described
        num_described += 1
        if num_described == 2:
            deletions.append(asyncio.create_task(files.delete(file.name, Tenant("", is_admin=True))))
            await record_is_gone.wait()
        await describe(file)

    monkeypatch.setattr(files.objects, "delete", delete_late)
    monkeypatch.setattr(GrowingObject, "describe", describe_late)
    async with desk.running():
        record = await desk.until_cleared(batch_id)
        assert (record.status, record.request_counts.completed) == ("completed", 1)
        assert [file.id for file in await files.all()] == [record.input_file_id, record.output_file_id]
        ended.set()
        await asyncio.gather(*deletions)
    assert [file.id for file in await files.all()] == [record.input_file_id]
    assert set(await files.objects.all()) == {record.input_file_id}


async def test_killed_between_a_piece_of_the_output_and_its_record(desk: Desk, clock: ManualClock) -> None:
    """Without a record, and without a description too, the pieces are named again before anything is added."""
    await desk.submit([chat_line(each) for each in "abc"])
    async with desk.running(permits=2):
        await until_size(desk, "file-1-output", lines=2)
    await desk.files.delete("file-1-output")
    clock.now_s += 100
    async with desk.running(permits=0):
        await until_size(desk, "file-1-output", lines=2)
    record = (await desk.files.get("file-1-output")).value
    assert record is not None and record.created_at == int(clock.now_s) - 100  # as the batch, whatever restarts
    await desk.files.delete("file-1-output")
    await desk.bus.purge(STREAM, description_of("file-1-output"))
    async with desk.running(permits=0):
        await until_size(desk, "file-1-output", lines=2)


def description_of(name: str) -> str:
    """The subject of an object's description."""
    return DESCRIPTIONS + base64.urlsafe_b64encode(name.encode()).decode()


async def until_size(desk: Desk, file_id: str, lines: int) -> None:
    """The file has so many lines."""
    async with asyncio.timeout(TIMEOUT_S):
        async for entry in desk.files.watch():
            if entry is not None and entry.key == file_id and len(await desk.read_file(file_id)) == lines:
                return


async def test_killed_before_an_ended_batch_is_cleared(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line("a"), chat_line("b")])
    async with desk.running(permits=1):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 1)
    await desk.cancel(batch_id)
    await desk.batches.edit(batch_id, batch_records.ended("cancelling", batch_records.BatchCounts(), None, None, 1))
    async with desk.running(permits=0) as (_, pool):
        record = await desk.until_cleared(batch_id)
        assert pool.added == []
    assert record.status == "cancelled"
    assert await desk.stored_requests(batch_id) == []
    assert await desk.stored_results(batch_id) == []


async def test_cancelled_while_nobody_was_there(desk: Desk) -> None:
    batch_id = await desk.submit([chat_line(str(number)) for number in range(4)])
    async with desk.running(permits=1):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 1)
    await desk.cancel(batch_id)
    async with desk.running(permits=0) as (_, pool):
        record = await desk.until_cleared(batch_id)
        assert pool.added == []
    counts = record.request_counts
    assert (record.status, counts.completed, counts.failed) == ("cancelled", 1, 0)
    assert set(await desk.results(record)) == set("0123")


@pytest.mark.parametrize("end", ["cancelled", "expired"])
@pytest.mark.parametrize("late", ["b", "bc"])
async def test_a_result_that_comes_after_its_line_was_written_as_not_run(
    desk: Desk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, end: str, late: str
) -> None:
    """The end and the counts are those of the files all the same."""
    is_written = asyncio.Event()

    async def close(*_: object) -> None:
        is_written.set()
        await asyncio.Event().wait()

    batch_id = await desk.submit([chat_line(each) for each in "abc"], window_s=50)
    with monkeypatch.context() as patched:
        patched.setattr(BatchOutputs, "_close", close)
        async with desk.running(permits=1):
            await desk.until(batch_id, lambda record: record.request_counts.completed == 1)
            if end == "expired":
                clock.now_s += 50
            else:
                await desk.cancel(batch_id)
            await asyncio.wait_for(is_written.wait(), TIMEOUT_S)
    for name in late:
        request_id = f"{batch_id}.{'abc'.index(name) + 1}"
        result = OfflineResult(request_id, TOKENIZER.encode(answer_text(name)), FinishReason.STOP)
        assert await desk.bus.store(WORK.result(request_id), result)
    async with desk.running(permits=0):
        record = await desk.until_cleared(batch_id)
    counts = record.request_counts
    assert (record.status, counts.completed, counts.failed) == (end, 1, 0)
    errors = await desk.read_file(record.error_file_id)
    assert [(each["custom_id"], each["error"]["code"]) for each in errors] == [(each, f"batch_{end}") for each in "bc"]


async def test_expired_while_nobody_was_there(desk: Desk, clock: ManualClock) -> None:
    batch_id = await desk.submit([chat_line(str(number)) for number in range(4)], window_s=50)
    async with desk.running(permits=1):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 1)
    clock.now_s += 50
    async with desk.running(permits=0) as (_, pool):
        record = await desk.until_cleared(batch_id)
        assert pool.added == []
    counts = record.request_counts
    assert (record.status, counts.completed, counts.failed) == ("expired", 1, 0)
    assert set(await desk.results(record)) == set("0123")


async def test_a_record_that_is_lost_while_its_batch_waits_for_the_bus(desk: Desk, clock: ManualClock) -> None:
    """What it had in the pool does not run on."""
    batch_id = await desk.submit([chat_line("a")])
    async with desk.running(permits=0):
        await desk.until_status(batch_id, "in_progress")
    manager, pool = await taken_up(desk, clock)
    assert len(pool.waiting) == 1
    await desk.batches.delete(batch_id)
    with pytest.raises(NotFoundOnBusError):
        await manager._lives[batch_id].restart()
    assert not pool.waiting


@pytest.mark.parametrize("end", ["cancelled", "expired"])
async def test_ended_while_a_batch_waited_for_the_bus(desk: Desk, clock: ManualClock, end: str) -> None:
    """What it had in the pool before does not run on."""
    batch_id = await desk.submit([chat_line(str(number)) for number in range(4)], window_s=50)
    async with desk.running(permits=0):
        await desk.until_status(batch_id, "in_progress")
    manager, pool = await taken_up(desk, clock)
    assert len(pool.waiting) == 4
    if end == "expired":
        clock.now_s += 50
    else:
        await desk.cancel(batch_id)
    life = manager._lives[batch_id]
    await life.restart()
    await life.run()
    assert not pool.waiting
    assert (life.record.status, life.record.cleared, life.record.request_counts.left) == (end, True, 4)


@pytest.mark.skipif(not FULL_DISK.exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("is_buffered", [False, True])
async def test_a_full_disk_under_temporary_files_is_waited_for(
    desk: Desk, is_buffered: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the batch is read in, and when it is taken up again; also where only reading a file tells, and then closing
    it."""
    full_file = partial(FULL_DISK.open, "r+b", buffering=1024**2 if is_buffered else 0)
    monkeypatch.setattr(life, "GROUP_RESULTS", 1)
    ids = [str(number) for number in range(70)]
    batch_id = await desk.submit([chat_line(each) for each in ids])
    for permits, num_done in ((5, 5), (ENDLESS, len(ids))):
        caplog.clear()
        with monkeypatch.context() as full:
            full.setattr(ingest, "temporary_file", full_file)
            full.setattr(batch_lines, "temporary_file", full_file)
            running = desk.running(permits)
            await running.__aenter__()
            await until(lambda: "batch waits for the disk" in caplog.messages)
        await desk.until(batch_id, lambda record, number=num_done: record.request_counts.completed == number)
        await running.__aexit__(None, None, None)


async def test_an_input_file_that_is_deleted_too_early_or_late(desk: Desk) -> None:
    early = await desk.submit([chat_line("a")])
    await desk.objects.delete("file-1")
    late = await desk.submit([chat_line("b")])
    async with desk.running(permits=0):
        record = await desk.until_cleared(early)
        assert record.status == "failed"
        assert record.errors is not None
        (error,) = record.errors.data
        assert (error.code, error.param, error.line) == ("input_file_not_found", "input_file_id", None)
        await desk.until_status(late, "in_progress")
        await desk.objects.delete("file-2")
    async with desk.running():
        await assert_complete(desk, await desk.until_cleared(late), ["b"])


@pytest.mark.parametrize("is_described", [False, True])
async def test_lost_data_fails_one_batch_and_no_other(desk: Desk, is_described: bool) -> None:
    lost, good = [await desk.submit([chat_line("a")]) for _ in range(2)]
    async with desk.running(permits=0):
        for batch_id in (lost, good):
            await desk.until_status(batch_id, "in_progress")
    if is_described:
        info = await desk.objects._store.get_info(lines_object(lost))
        await desk.bus.purge(STREAM, f"{CHUNKS}{info.nuid}")
    else:
        await desk.objects.delete(lines_object(lost))
    async with desk.running():
        record = await desk.until_cleared(lost)
        assert record.errors is not None
        assert (record.status, [error.code for error in record.errors.data]) == ("failed", ["server_error"])
        await assert_complete(desk, await desk.until_cleared(good), ["a"])


async def test_the_files_of_a_batch_that_broke_expire_as_those_of_one_that_has_ended(
    desk: Desk, clock: ManualClock
) -> None:
    batch_id = await desk.submit([chat_line(each) for each in "ab"])
    await desk.batches.edit(batch_id, lambda record: replace(record, output_expires_after_s=3600))
    async with desk.running(permits=1):
        await until_size(desk, "file-1-output", lines=1)
    await desk.objects.delete(lines_object(batch_id))
    clock.now_s += 100
    async with desk.running(permits=0):
        record = await desk.until_cleared(batch_id)
    assert (record.status, record.output_file_id, record.error_file_id) == ("failed", "file-1-output", None)
    file = (await desk.files.get("file-1-output")).value
    assert file is not None and file.expires_at == clock.now_s + 3600
    assert [line["custom_id"] for line in await desk.read_file("file-1-output")] == ["a"]


async def test_a_batch_that_cannot_be_read_does_not_stop_the_others(desk: Desk) -> None:
    """Neither at the start nor later; it goes on once it can be read again."""
    damaged, good = [await desk.submit([chat_line("a")]) for _ in range(2)]
    async with desk.running(permits=0):
        for batch_id in (damaged, good):
            await desk.until_status(batch_id, "in_progress")
    subject = description_of(lines_object(damaged))
    (whole,) = [raw.data async for raw in desk.bus.read_raw(STREAM, subject)]
    await desk.bus.store_raw(subject, b"no description", {Header.ROLLUP.value: "sub"})
    async with desk.running():
        await assert_complete(desk, await desk.until_cleared(good), ["a"])
        assert (await desk.until(damaged, lambda record: True)).status == "in_progress"
        await desk.bus.store_raw(subject, whole, {Header.ROLLUP.value: "sub"})
        await assert_complete(desk, await desk.until_cleared(damaged), ["a"])


@pytest.mark.parametrize("seed", range(5))
async def test_killed_again_and_again(desk: Desk, seed: int) -> None:
    """Wherever the event loop happens to be: lives grow longer, so that the batch ends at last."""
    ids = [f"request {number}" for number in range(150)]
    batch_id = await desk.submit([chat_line(each) for each in ids])
    generator = random.Random(seed)
    kills, record = 0, None
    while record is None or not record.cleared:
        async with desk.running():
            for _ in range(generator.randint(1, int(50 * 1.25**kills))):
                await asyncio.sleep(0)
        kills += 1
        record = (await desk.batches.get(batch_id)).value
        assert record is not None
    assert kills > 3
    await assert_complete(desk, record, ids)


@pytest.mark.slow
async def test_the_bus_restarts(tmp_path: Path) -> None:
    ids = [str(number) for number in range(12)]
    port = free_port()
    with nats_server(port, tmp_path):
        bus = await Bus.connect(f"nats://127.0.0.1:{port}", "test")
        await bus.ensure_streams()
        desk = await Desk.open(f"nats://127.0.0.1:{port}", bus)
        batch_id = await desk.submit([chat_line(each) for each in ids])
        running = desk.running(permits=5)
        _, pool = await running.__aenter__()
        await pool.until(lambda: len(pool.discarded) == 5)
    with nats_server(port, tmp_path):
        await desk.until(batch_id, lambda record: record.request_counts.completed == 5)
        for _ in range(7):
            pool.permits.release()
        await assert_complete(desk, await desk.until_cleared(batch_id), ids)
        await running.__aexit__(None, None, None)
        await bus.close()


@contextlib.contextmanager
def nats_server(port: int, folder: Path) -> Iterator[None]:
    """A server that keeps its store when it ends."""
    command = [nats_server_binary(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(port, process)
        yield
    finally:
        process.kill()
        process.wait(10)


async def test_batches_are_taken_up_side_by_side_in_their_order(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first here waits for the last; what is to run of it comes first all the same."""
    ids = [await desk.submit([chat_line("a"), chat_line("b")]) for _ in range(3)]
    async with desk.running(permits=0):
        for each in ids:
            await desk.until_status(each, "in_progress")
    read, last_is_read = LineSpool.read, asyncio.Event()

    async def read_late(objects: Objects, batch_id: str, tell: Callable[[BatchLine], None]) -> LineSpool:
        if batch_id == ids[-1]:
            last_is_read.set()
        elif batch_id == ids[0]:
            await asyncio.wait_for(last_is_read.wait(), TIMEOUT_S)
        return await read(objects, batch_id, tell)

    monkeypatch.setattr(LineSpool, "read", read_late)
    async with desk.running(permits=0) as (_, pool):
        assert pool.added == [f"{each}.{line}" for each in ids for line in (1, 2)]
