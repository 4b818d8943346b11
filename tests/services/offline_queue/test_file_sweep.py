"""Files that expire, and what a kill leaves in the object store, on a real bus."""

import asyncio
import contextlib
import io
import threading
from collections.abc import AsyncIterator, Callable

import pytest
from msgspec.structs import replace

from services.offline_queue.batches.file_sweep import FORGET_AGE_S, GRACE_S, WITHDRAWN_AGE_S, FileSweep
from services.offline_queue.batches.leftovers import Leftovers
from services.offline_queue.batches.lines import lines_object
from shared.bus.objects import CHUNKS, DESCRIPTIONS, STREAM
from shared.errors import NotFoundOnBusError
from shared.protocol.offline.batches import WITHDRAWN, BatchKey, FileObject
from tests.services.offline_queue.batch_desk import TIMEOUT_S, Desk, ManualClock, chat_line

CHUNK_BYTES = 128 * 1024  # of nats-py


@contextlib.asynccontextmanager
async def sweeping(
    desk: Desk, is_being_read: Callable[[str], bool] = lambda file_id: False
) -> AsyncIterator[FileSweep]:
    """Leaving is a kill."""
    sweep = FileSweep(desk, is_being_read)
    running = asyncio.create_task(sweep.run())
    try:
        yield sweep
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def add_file(desk: Desk, file_id: str, expires_at: int | None) -> None:
    size = await desk.objects.put(file_id, b"contents of " + file_id.encode())
    await desk.files.create(file_id, FileObject(file_id, size, 1, "f.jsonl", "batch", expires_at))


async def read(desk: Desk, name: str) -> bytes:
    return b"".join([chunk async for chunk in desk.objects.chunks(name)])


async def until_gone(desk: Desk, file_id: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while file_id in await desk.files.keys() or file_id in await desk.objects.all():
            pass


async def subjects_of(desk: Desk, prefix: str) -> list[str]:
    return [raw.subject async for raw in desk.bus.read_raw(STREAM, f"{prefix}>", newest_only=True)]


async def test_an_expired_file_goes_with_its_bytes(desk: Desk, clock: ManualClock) -> None:
    now_s = int(clock.now_s)
    for file_id, expires_at in (("file-old", now_s - GRACE_S), ("file-new", now_s + 1000), ("file-kept", None)):
        await add_file(desk, file_id, expires_at)
    async with sweeping(desk):  # it was not there when the first one expired
        await until_gone(desk, "file-old")
    assert {entry.key for entry in await desk.files.entries()} == {"file-new", "file-kept"}
    clock.now_s += 1000 + GRACE_S
    async with sweeping(desk):
        await until_gone(desk, "file-new")
    assert await read(desk, "file-kept") == b"contents of file-kept"
    assert len(await subjects_of(desk, CHUNKS)) == 1


async def test_a_clock_that_is_set_deletes_nothing(desk: Desk, clock: ManualClock) -> None:
    await add_file(desk, "file-kept", int(clock.now_s) + 1000)
    await add_file(desk, "file-old", int(clock.now_s) - GRACE_S)
    async with sweeping(desk):
        await until_gone(desk, "file-old")  # and so the other is known
        clock.set_s += 1_000_000
        await add_file(desk, "file-late", int(clock.unix_s()) - GRACE_S)
        await until_gone(desk, "file-late")
        assert (await desk.files.get("file-kept")).value is not None
        clock.now_s += 1000 + GRACE_S
        await add_file(desk, "file-later", int(clock.unix_s()) - GRACE_S)
        await until_gone(desk, "file-kept")


async def test_a_file_that_comes_later_is_noticed(desk: Desk, clock: ManualClock) -> None:
    async with sweeping(desk):
        await add_file(desk, "file-late", int(clock.now_s) - GRACE_S)
        await until_gone(desk, "file-late")
    assert await subjects_of(desk, CHUNKS) == []


async def test_an_expired_file_waits_for_the_batch_that_reads_it(desk: Desk, clock: ManualClock) -> None:
    batch_id = await desk.submit([chat_line(str(number)) for number in range(300)])
    asked: asyncio.Queue[bool] = asyncio.Queue()
    async with desk.running(permits=0) as (manager, _):
        async with manager.tools.reading:  # it cannot be read to its end
            expired_s = int(clock.now_s) - GRACE_S
            await desk.files.edit("file-1", lambda record: replace(record, expires_at=expired_s))

            def is_being_read(file_id: str) -> bool:
                is_read = manager.is_being_read(file_id)
                asked.put_nowait(is_read)
                return is_read

            async with sweeping(desk, is_being_read):
                async with asyncio.timeout(TIMEOUT_S):
                    assert await asked.get()
                assert (await desk.files.get("file-1")).value is not None
        record = await desk.until_status(batch_id, "in_progress", "failed")
        assert (record.status, record.request_counts.total) == ("in_progress", 300)
        async with sweeping(desk, manager.is_being_read):
            await until_gone(desk, "file-1")


class StuckFile(io.BytesIO):
    """After its first chunks nothing more comes until it is let go."""

    def __init__(self, size: int) -> None:
        super().__init__(bytes(size))
        self.is_stuck = threading.Event()
        self.let_go = threading.Event()

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        if self.tell() >= 3 * CHUNK_BYTES:
            self.is_stuck.set()
            self.let_go.wait(TIMEOUT_S)
        return super().readinto(buffer)


async def kill_a_put(desk: Desk, name: str) -> None:
    """In the middle, as the end of its process does: chunks stay and no object has them."""
    source = StuckFile(9 * CHUNK_BYTES)
    putting = asyncio.create_task(desk.objects.put(name, source))
    await asyncio.to_thread(source.is_stuck.wait, TIMEOUT_S)
    putting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await putting
    source.let_go.set()


async def test_what_a_kill_left_half_done_goes_and_nothing_else(desk: Desk) -> None:
    await add_file(desk, "file-good", None)
    await kill_a_put(desk, "file-cut")
    await desk.objects.put("file-without-record", b"x" * 300_000)
    await desk.objects.put("file-deleted", b"y")
    await desk.objects.delete("file-deleted")
    batch_id = await desk.submit([chat_line("a")])
    async with desk.running(permits=0):
        await desk.until_status(batch_id, "in_progress")
        assert len(await subjects_of(desk, CHUNKS)) == 5
        leftovers = await Leftovers.found(desk)
        assert await leftovers.remove_if_still(desk) == 3  # an object, the description of one, a put's chunks
        again = await Leftovers.found(desk)
        assert await again.remove_if_still(desk) == 1  # that object's description
        assert await Leftovers.found(desk) == Leftovers({}, {}, {})
        names = set(await desk.objects.all())
        assert names == {"file-good", "file-1", lines_object(batch_id)}
        assert len(await subjects_of(desk, CHUNKS)) == len(await subjects_of(desk, DESCRIPTIONS)) == 3
        assert await read(desk, "file-good") == b"contents of file-good"
        with pytest.raises(NotFoundOnBusError):
            await read(desk, "file-without-record")
    async with desk.running():
        assert (await desk.until_cleared(batch_id)).request_counts.completed == 1


async def test_uploads_at_work_are_left_alone_whatever_the_clock_says(desk: Desk, clock: ManualClock) -> None:
    """Contents are stored before their record, and chunks before the object that has them."""
    clock.now_s += 10 * FORGET_AGE_S
    source = StuckFile(9 * CHUNK_BYTES)
    putting = asyncio.create_task(desk.objects.put("file-slow", source))
    await asyncio.to_thread(source.is_stuck.wait, TIMEOUT_S)
    await desk.objects.put("file-named-late", b"z")
    leftovers = await Leftovers.found(desk)
    assert (len(leftovers.objects), len(leftovers.stored)) == (1, 1)
    source.let_go.set()
    await putting
    await desk.files.create("file-named-late", FileObject("file-named-late", 1, 1, "f.jsonl", "batch"))
    assert await leftovers.remove_if_still(desk) == 0
    assert await read(desk, "file-named-late") == b"z"
    assert await read(desk, "file-slow") == bytes(9 * CHUNK_BYTES)


async def test_chunks_to_which_something_was_added_are_left_alone(desk: Desk) -> None:
    await desk.bus.store_raw(f"{CHUNKS}cut", b"a", {})
    leftovers = await Leftovers.found(desk)
    await desk.bus.store_raw(f"{CHUNKS}cut", b"b", {})
    assert await leftovers.remove_if_still(desk) == 0
    assert await (await Leftovers.found(desk)).remove_if_still(desk) == 1
    assert await subjects_of(desk, CHUNKS) == []


async def test_a_deleted_batch_is_forgotten_once_it_is_cleared(desk: Desk, clock: ManualClock) -> None:
    cleared, at_work = [await desk.submit([chat_line("a")]) for _ in range(2)]
    ended = {"status": "completed", "completed_at": int(clock.now_s), "claim": WITHDRAWN}
    for batch_id, is_cleared in ((cleared, True), (at_work, False)):
        await desk.batches.edit(batch_id, lambda record, done=is_cleared: replace(record, **ended, cleared=done))
    clock.now_s += WITHDRAWN_AGE_S
    assert await FileSweep(desk, lambda file_id: False).forget_old() == 1
    assert await desk.batches.keys() == {at_work}


async def test_batches_that_ended_long_ago_and_deletions_are_forgotten(desk: Desk, clock: ManualClock) -> None:
    """Nothing of them is read any more by whoever lists batches and files."""
    old, new, running = [await desk.submit([chat_line("a")]) for _ in range(3)]
    now_s = int(clock.now_s)
    for batch_id, completed_at in ((old, now_s - 100), (new, now_s - 99)):
        done = {"status": "completed", "completed_at": completed_at, "cleared": True}
        await desk.batches.edit(batch_id, lambda record, done=done: replace(record, **done))
    await desk.files.delete("file-1")
    await desk.files.delete("file-never")
    sweep = FileSweep(desk, lambda file_id: False, keep_batches_s=100)
    assert await sweep.forget_old(await sweep.old_deletions()) == 1  # no deletion of today
    assert [entry.key for entry in await desk.batches.entries()] == [running, new]
    clock.now_s += FORGET_AGE_S + 60
    deletions = await sweep.old_deletions()
    assert await sweep.forget_old(deletions) == 1 + 3  # others are to hear first of that which is deleted now
    for bucket, told, there in (
        (desk.batches, {running, new}, {running}),
        (desk.files, {"file-2", "file-3"}, {"file-2", "file-3"}),
    ):
        assert await desk.bus.subjects(bucket._stream, ">") == {bucket._prefix + key for key in told}
        assert await bucket.keys() == there


async def test_keys_of_batches_that_are_gone_are_freed_and_forgotten(desk: Desk, clock: ManualClock) -> None:
    """Before their batches' deletions are, so that no batch is written in the place of an earlier one."""
    there, gone = [await desk.submit([chat_line("a")]) for _ in range(2)]
    for name, batch_id in (("there", there), ("gone", gone), ("never", "batch_never"), ("again", "batch_again")):
        await desk.batch_keys.create(name, BatchKey(batch_id, int(clock.now_s)))
    await desk.batches.delete(gone)
    leftovers = await Leftovers.found(desk)
    assert leftovers.keys.keys() == {"gone", "never", "again"}
    await desk.batch_keys.create("new", BatchKey("batch_new", int(clock.now_s)))  # a creation is at work
    await desk.batch_keys.put("again", BatchKey("batch_new", int(clock.now_s)))
    assert await leftovers.remove_if_still(desk) == 2
    assert await desk.batch_keys.keys() == {"there", "again", "new"}
    clock.now_s += FORGET_AGE_S + 60
    sweep = FileSweep(desk, lambda file_id: False)
    assert await sweep.forget_old(await sweep.old_deletions()) == 3  # the deletions of two keys and of a batch
    kept = {desk.batch_keys._prefix + key for key in ("there", "again", "new")}
    assert await desk.bus.subjects(desk.batch_keys._stream, ">") == kept
