"""A bus that stores nothing more, since it has as much as it may: what makes room can be done all the same."""

import io
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.gateway.store import FileStore
from services.gateway.tenants import Tenant
from shared.bus import Bus
from shared.clock import SystemClock
from shared.errors import NoRoomOnBusError
from shared.protocol import subjects
from shared.protocol.offline.batches import FileRecord
from tests.shared.bus.servers import RealServer

MOST_BYTES = 2 * 1024**2
FILE_BYTES = 256 * 1024
ALL = Tenant("", is_admin=True)


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    server = RealServer(tmp_path / "nats", MOST_BYTES)
    try:
        bus = await Bus.connect(server.url, "test")
        await bus.ensure_streams()
        yield bus
        await bus.close()
    finally:
        server.kill()


async def files_of(bus: Bus) -> FileStore:
    return FileStore(await bus.bucket(subjects.FILES_BUCKET, FileRecord), SystemClock(), await bus.objects())


async def upload(files: FileStore, number: int) -> str:
    contents = random.Random(number).randbytes(FILE_BYTES)
    record = FileRecord(f"file-{number}", FILE_BYTES, number, "input.jsonl", "batch")
    await files.create(record, io.BytesIO(contents))
    return record.id


async def fill(bus: Bus, files: FileStore) -> list[str]:
    """Until not even a word has room; the files that are there."""
    uploaded: list[str] = []
    with pytest.raises(NoRoomOnBusError, match="max_file_store"):
        while True:
            uploaded.append(await upload(files, len(uploaded)))
    with pytest.raises(NoRoomOnBusError):
        for number in range(10**6):
            await bus.store(f"{subjects.PREFIX}.requests.model.batch.{number}", "x" * 1024)
    return uploaded


async def test_a_file_can_be_deleted_and_then_there_is_room(bus: Bus) -> None:
    files = await files_of(bus)
    first, *others = await fill(bus, files)
    await files.delete(first, ALL)
    assert [record.id for record in await files.all()] == others
    assert set(await files.objects.all()) == set(others)
    await bus.store(f"{subjects.PREFIX}.requests.model.batch.next", "x" * 1024)
    for number, file_id in enumerate(others, 1):
        kept = b"".join([chunk async for chunk in files.objects.chunks(file_id)])
        assert kept == random.Random(number).randbytes(FILE_BYTES)


async def test_what_was_not_taken_as_a_file_is_withdrawn(bus: Bus) -> None:
    """Its contents found room, its record did not."""
    files = await files_of(bus)
    record = FileRecord("file-last", FILE_BYTES, 0, "input.jsonl", "batch")
    await files.objects.put(record.id, random.Random(0).randbytes(FILE_BYTES))
    uploaded = await fill(bus, files)
    with pytest.raises(NoRoomOnBusError):
        await files.records.create(record.id, record)
    assert await files._try_withdraw(record)
    assert set(await files.objects.all()) == set(uploaded)
