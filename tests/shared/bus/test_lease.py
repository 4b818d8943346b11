"""Of those that want it, one holds a lease, and knows when it may have lost it."""

import asyncio

import pytest

from shared.bus import Bus
from shared.bus.lease import Lease
from shared.clock import SystemClock
from shared.errors import LeaseLostError
from shared.protocol.services import LeaseHolder
from tests.shared.bus.servers import Server, until


class OtherHolds(Exception):
    pass


def refuse(holder: LeaseHolder) -> None:
    raise OtherHolds(holder.holder_id)


async def test_one_holds_it_until_it_lets_go(bus: Bus, nats_url: str) -> None:
    other = await Bus.connect(nats_url, "other")
    one, two = Lease(bus, "test", SystemClock()), Lease(other, "test", SystemClock())
    await one.take(refuse)
    assert one.may_send("anything")
    with pytest.raises(OtherHolds):
        await two.take(refuse)
    await one.release()
    await asyncio.wait_for(two.take(refuse), 5)
    assert two.may_send("anything")
    await other.close()


async def test_who_dies_is_replaced(bus: Bus, nats_url: str) -> None:
    other = await Bus.connect(nats_url, "other")
    gone, next_one = Lease(other, "test", SystemClock()), Lease(bus, "test", SystemClock())
    await gone.take(refuse)
    await other.close()
    await asyncio.wait_for(next_one.take(lambda _: None), 5)


@pytest.mark.slow
async def test_it_is_kept_over_a_restart_of_the_server(server: Server, bus: Bus) -> None:
    lease = Lease(bus, "test", SystemClock())
    await lease.take(refuse)
    keeping = asyncio.create_task(lease.keep())
    before = bus.reconnects
    server.kill()
    await until(lambda: not bus.is_connected)
    assert not lease.may_send("anything")
    renewed = asyncio.create_task(lease.renewed())
    server.start()
    await bus.wait_reconnected(before, 20)
    assert not renewed.done()
    await asyncio.wait_for(renewed, 20)
    assert lease.may_send("anything")
    keeping.cancel()
    await asyncio.wait_for(lease.renewed(), 1)  # as it is now


async def test_who_lost_it_is_told(bus: Bus, nats_url: str) -> None:
    lease = Lease(bus, "test", SystemClock())
    await lease.take(refuse)
    await lease._bucket.put("test", LeaseHolder("thief", 1, "elsewhere"))
    with pytest.raises(LeaseLostError, match=r"another process holds it now \(pid 1 on elsewhere\)"):
        await asyncio.wait_for(lease.keep(), 10)


async def test_who_is_forgotten_is_not_told_of_another(bus: Bus) -> None:
    lease = Lease(bus, "test", SystemClock())
    await lease.take(refuse)
    await bus.purge(lease._bucket._stream, f"{lease._bucket._prefix}test")
    with pytest.raises(LeaseLostError, match="the bus has no holder of it"):
        await asyncio.wait_for(lease.keep(), 10)
