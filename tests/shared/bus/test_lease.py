"""Of those that want it, one holds a lease, and knows when it may have lost it."""

import asyncio

import pytest
from nats.aio.msg import Msg

from shared.bus import Bus, Entry
from shared.bus.lease import Lease, is_held
from shared.clock import SystemClock
from shared.errors import LeaseLostError
from shared.protocol import subjects
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


async def test_who_lets_go_late_takes_it_from_nobody(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may stand still between its look and its last word, as long as it takes to be replaced."""
    lease, other = Lease(bus, "test", SystemClock()), LeaseHolder("other", 1, "elsewhere")
    await lease.take(refuse)
    find = lease._find

    async def find_before_another_has_it() -> Entry[LeaseHolder] | None:
        found = await find()
        await lease._bucket.put("test", other)
        return found

    monkeypatch.setattr(lease, "_find", find_before_another_has_it)
    await lease.release()
    assert (await lease._bucket.get("test")).value == other


async def test_who_has_it_without_a_word_of_the_bus_takes_itself_for_nobody_else(bus: Bus) -> None:
    """The confirmation of its first write was lost, and the lease stands with its own name."""
    lease = Lease(bus, "test", SystemClock())
    leases = await bus.bucket(subjects.LEASES_BUCKET, LeaseHolder)
    await leases.put("test", lease._own)
    await lease.take(refuse)
    assert lease.may_send("anything")
    assert (await leases.get("test")).revision == lease._revision
    await lease.release()


async def test_who_dies_is_replaced(bus: Bus, nats_url: str) -> None:
    other = await Bus.connect(nats_url, "other")
    gone, next_one = Lease(other, "test", SystemClock()), Lease(bus, "test", SystemClock())
    await gone.take(refuse)
    await other.close()
    await asyncio.wait_for(next_one.take(lambda _: None), 5)


async def test_one_that_cannot_be_read_is_taken_once_nobody_renews_it(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version's, or damaged: whether its holder is there cannot be asked."""
    monkeypatch.setattr("shared.bus.lease.EXPIRY_S", 2.0)
    leases = await bus.bucket(subjects.LEASES_BUCKET, LeaseHolder)
    key, lease = f"{leases._prefix}test", Lease(bus, "test", SystemClock())
    await bus.store_raw(key, b"{}", {})
    taking = asyncio.create_task(lease.take(refuse))
    for _ in range(6):
        await asyncio.sleep(0.5)
        assert not taking.done()
        await bus.store_raw(key, b"{}", {})
    await asyncio.wait_for(taking, 10)
    assert (await leases.get("test")).value == lease._own
    assert not await is_held(bus, "other")
    await bus.store_raw(f"{leases._prefix}other", b"{}", {})
    assert not await is_held(bus, "other")


async def test_who_waits_asks_the_holder_and_not_the_bus(bus: Bus, nats_url: str) -> None:
    num_answers, num_reads, has_waited = 0, 0, asyncio.Event()

    async def on_read(_: Msg) -> None:
        nonlocal num_reads
        num_reads += 1

    def on_held(_: LeaseHolder) -> None:
        nonlocal num_answers
        num_answers += 1
        if num_answers == 4:
            has_waited.set()

    other = await Bus.connect(nats_url, "other")
    await bus._client.subscribe(f"$JS.API.STREAM.MSG.GET.KV_{subjects.LEASES_BUCKET}", cb=on_read)
    await bus.flush()
    holder, waiter = Lease(bus, "test", SystemClock()), Lease(other, "test", SystemClock())
    await holder.take(refuse)
    waiting = asyncio.create_task(waiter.take(on_held))
    await asyncio.wait_for(has_waited.wait(), 10)
    assert num_reads == 2  # each has looked once
    await holder.release()
    await asyncio.wait_for(waiting, 5)
    await other.close()


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
