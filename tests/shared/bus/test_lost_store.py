"""A server that comes back without anything that it had stored."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.bus import Bus
from shared.bus.lease import Lease
from shared.clock import SystemClock
from shared.errors import BusError, LeaseLostError
from tests.shared.bus.servers import RealServer, until


class Emptied:
    """A connection to it, and what is to be done to it."""

    def __init__(self, server: RealServer, store: Path, bus: Bus) -> None:
        self.bus = bus
        self._server = server
        self._store = store

    async def lose_all(self) -> None:
        before = self.bus.reconnects
        self._server.kill()
        shutil.rmtree(self._store)
        self._server.start()
        await self.bus.wait_reconnected(before, 20)


@pytest.fixture
async def emptied(tmp_path: Path) -> AsyncIterator[Emptied]:
    store = tmp_path / "nats"
    server = RealServer(store)
    try:
        bus = await Bus.connect(server.url, "test")
        yield Emptied(server, store, bus)
        await bus.close()
    finally:
        server.kill()


async def test_a_bucket_is_made_again_by_who_writes_to_it(emptied: Emptied) -> None:
    bucket, heard = await emptied.bus.bucket("test_numbers", int), dict[str, int | None]()
    watching = asyncio.create_task(bucket.follow(heard.__setitem__))
    await bucket.put("before", 1)
    await until(lambda: heard == {"before": 1})
    await emptied.lose_all()
    with pytest.raises(BusError):
        await bucket.put("after", 2)
    await bucket.put("after", 2)
    assert (await bucket.get("after")).value == 2
    await until(lambda: heard == {"before": None, "after": 2})
    watching.cancel()


async def test_who_held_a_lease_ends_so_that_all_is_made_again(emptied: Emptied) -> None:
    lease = Lease(emptied.bus, "test", SystemClock())
    await lease.take(lambda holder: None)
    await emptied.lose_all()
    with pytest.raises(LeaseLostError, match="it has lost that"):
        await asyncio.wait_for(lease.keep(), 30)
