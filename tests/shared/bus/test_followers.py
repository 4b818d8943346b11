"""Followers of buckets that were away: what was deleted meanwhile, or lost by the store, is not kept."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shared.bus import Bus, Entry
from tests.shared.bus.servers import RealServer, Server, until


async def told(watching: AsyncIterator[Entry[int] | None], count: int) -> list[tuple[str, int | None] | None]:
    """The next ones: keys and values."""
    entries = [await asyncio.wait_for(anext(watching), 20) for _ in range(count)]
    return [None if entry is None else (entry.key, entry.value) for entry in entries]


@asynccontextmanager
async def away(server: Server, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The server is started anew, and the connection is not made again inside."""
    come_back, connect = asyncio.Event(), bus._client._process_connect_init

    async def connect_late() -> None:
        await come_back.wait()
        await connect()

    monkeypatch.setattr(bus._client, "_process_connect_init", connect_late)
    monkeypatch.setitem(bus._client.options, "connect_timeout", 60)
    before = bus.reconnects
    server.kill()
    await until(lambda: not bus.is_connected)
    server.start()
    yield
    come_back.set()
    await bus.wait_reconnected(before, 20)


async def test_who_was_away_hears_of_a_deletion_that_is_forgotten(
    server: Server, bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of nothing that is as it was."""
    bucket = await bus.bucket("test_numbers", int)
    for number, key in enumerate("abc"):
        await bucket.put(key, number)
    watching = bucket.watch()
    assert await told(watching, 4) == [("a", 0), ("b", 1), ("c", 2), None]
    async with away(server, bus, monkeypatch):
        other = await Bus.connect(nats_url, "other")
        numbers = await other.bucket("test_numbers", int)
        await numbers.delete("a")
        await numbers.forget(await numbers.deletions(before_s=4e9))
        await numbers.put("b", 10)
        await other.close()
    coming = await told(watching, 2)
    await bucket.put("d", 3)
    assert [*coming, *(await told(watching, 1))] == [("b", 10), ("a", None), ("d", 3)]


async def test_who_was_away_hears_of_what_the_store_has_lost(tmp_path: Path) -> None:
    """As after a power cut without syncing, also where others have written as many revisions since."""
    store, earlier = tmp_path / "nats", tmp_path / "earlier"
    server = RealServer(store)
    try:
        bus = await Bus.connect(server.url, "test")
        bucket = await bus.bucket("test_numbers", int)
        await bucket.put("a", 1)
        server.kill()
        shutil.copytree(store, earlier)
        server.start()
        await bus.wait_reconnected(0, 20)
        assert [await bucket.put("a", 2), await bucket.put("b", 5)] == [2, 3]
        watching = bucket.watch()
        assert await told(watching, 3) == [("a", 2), ("b", 5), None]
        server.kill()
        shutil.rmtree(store)
        earlier.rename(store)
        server.start()
        await bus.wait_reconnected(1, 20)
        assert [await bucket.put("a", 3), await bucket.put("c", 1)] == [2, 3]
        assert await told(watching, 3) == [("a", 3), ("c", 1), ("b", None)]
        await bus.close()
    finally:
        server.kill()
