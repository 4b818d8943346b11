"""What nats-server has and cannot read, since it may open no more files: it is not taken for absent."""

import asyncio
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.bus import Bus
from shared.bus.pulls import Pulls
from shared.errors import BusError, NotFoundOnBusError
from tests.programs import no_more_files
from tests.shared.bus.servers import RealServer

CONTENTS = b"x" * 1024**2

pytestmark = pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux bounds another process's files")


@pytest.fixture
async def cold(tmp_path: Path) -> AsyncIterator[tuple[RealServer, Bus]]:
    """A server that has just started, with a record and an object, of which nothing is in its memory yet."""
    server = RealServer(tmp_path / "nats")
    try:
        bus = await Bus.connect(server.url, "test")
        bucket, objects = await bus.bucket("test_numbers", int), await bus.objects()
        await bucket.put("one", 1)
        await bucket.put("gone", 0)
        await bucket.delete("gone")
        await objects.put("contents", CONTENTS)
        await bus.close()
        server.kill()
        server.start()
        bus = await Bus.connect(server.url, "test")
        yield server, bus
        await bus.close()
    finally:
        server.kill()


async def test_what_cannot_be_read_is_not_absent(cold: tuple[RealServer, Bus]) -> None:
    server, bus = cold
    bucket, objects = await bus.bucket("test_numbers", int), await bus.objects()
    with no_more_files(server.pid):
        for reading in (bucket.get("one"), bucket.has("one"), anext(objects.chunks("contents"))):
            with pytest.raises(BusError, match="the bus cannot read it") as raised:
                await reading
            assert not isinstance(raised.value, NotFoundOnBusError)
    assert (await bucket.get("one")).value == 1
    assert b"".join([chunk async for chunk in objects.chunks("contents")]) == CONTENTS
    for key in ("gone", "never"):
        with pytest.raises(NotFoundOnBusError):
            await bucket.get(key)


async def test_a_reader_asks_now_and_then_for_what_cannot_be_read(
    cold: tuple[RealServer, Bus], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, bus = cold
    bucket, asked, ask = await bus.bucket("test_numbers", int), [0], Pulls.ask

    async def counted(pulls: Pulls, num_pending: int) -> object:
        asked[0] += 1
        return await ask(pulls, num_pending)

    monkeypatch.setattr(Pulls, "ask", counted)
    with no_more_files(server.pid):
        reading = asyncio.ensure_future(bucket.entries())
        await asyncio.sleep(1)
        assert not reading.done() and 2 <= asked[0] <= 10
    async with asyncio.timeout(10):
        assert [(entry.key, entry.value) for entry in await reading] == [("one", 1)]
