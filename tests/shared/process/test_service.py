"""A service's life."""

import asyncio

import pytest

from shared.bus import Bus
from shared.errors import BusError, ConfigError, SlackwaterError
from shared.process.service import Details, Service, serve


class Waits(Service):
    name = "waits"

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.has_stopped = False

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.has_stopped = True

    def details(self) -> Details:
        return {}


async def test_it_ends_where_the_server_will_not_have_its_connection_any_more(nats_url: str) -> None:
    """A process that nothing reaches is started again only once it has ended."""
    made: asyncio.Queue[Waits] = asyncio.Queue()

    def make(bus: Bus) -> Service:
        service = Waits(bus)
        made.put_nowait(service)
        return service

    serving = asyncio.create_task(serve(nats_url, "waits", make, asyncio.Event()))
    service = await made.get()
    await service.bus.flush()
    service.bus._client._transport.write(b"THIS IS NOT THE PROTOCOL\r\n")
    with pytest.raises(BusError, match="ended the connection"):
        await asyncio.wait_for(serving, 30)
    assert service.has_stopped


class Runs(Waits):
    def __init__(self, bus: Bus) -> None:
        super().__init__(bus)
        self.is_running = asyncio.Event()
        self.was_connected_at_stop = False

    async def run(self) -> None:
        self.is_running.set()
        await super().run()

    async def stop(self) -> None:
        await super().stop()
        self.was_connected_at_stop = self.bus.is_connected


async def test_one_that_runs_is_stopped_when_it_is_told_to_end_and_then_its_bus_is_closed(nats_url: str) -> None:
    stopping, made = asyncio.Event(), asyncio.Queue[Runs]()

    def make(bus: Bus) -> Service:
        made.put_nowait(service := Runs(bus))
        return service

    serving = asyncio.create_task(serve(nats_url, "waits", make, stopping))
    service = await made.get()
    await service.is_running.wait()
    assert not serving.done()
    stopping.set()
    await asyncio.wait_for(serving, 30)
    assert service.has_stopped and service.was_connected_at_stop and service.bus.is_closed


async def test_one_that_is_told_to_end_before_it_is_connected_is_not_made(nats_url: str) -> None:
    stopping, made = asyncio.Event(), list[Bus]()

    def make(bus: Bus) -> Service:
        made.append(bus)
        return Waits(bus)

    serving = asyncio.create_task(serve(nats_url, "waits", make, stopping))
    stopping.set()
    await asyncio.wait_for(serving, 30)
    assert made == []


class FailsInParts(Waits):
    """What it does beside each other ends it."""

    errors: tuple[Exception, ...] = ()

    async def run(self) -> None:
        async def fail(error: Exception) -> None:
            raise error

        async with asyncio.TaskGroup() as group, asyncio.TaskGroup() as inner:
            for each in self.errors:
                inner.create_task(fail(each))
            group.create_task(asyncio.Event().wait())


@pytest.mark.parametrize(
    ("errors", "ends_by"),
    [
        ((BusError("away"),), BusError),
        ((ConfigError("first"), BusError("away")), ConfigError),
        ((ValueError("not foreseen"), BusError("away")), ExceptionGroup),
    ],
)
async def test_named_errors_of_its_parts_end_it_as_one_of_its_own(
    nats_url: str, errors: tuple[Exception, ...], ends_by: type[Exception]
) -> None:
    def make(bus: Bus) -> Service:
        service = FailsInParts(bus)
        service.errors = errors
        return service

    with pytest.raises((SlackwaterError, ExceptionGroup)) as raised:
        await asyncio.wait_for(serve(nats_url, "waits", make, asyncio.Event()), 30)
    assert type(raised.value) is ends_by


class StartsWithoutBus(Waits):
    """The bus is away when it is told to end."""

    def __init__(self, bus: Bus, stopping: asyncio.Event) -> None:
        super().__init__(bus)
        self._stopping = stopping

    async def start(self) -> None:
        self._stopping.set()
        await asyncio.sleep(0)
        raise BusError("away")


async def test_one_that_is_told_to_end_does_not_blame_the_bus_that_it_could_not_start_with(nats_url: str) -> None:
    stopping, made = asyncio.Event(), asyncio.Queue[Waits]()

    def make(bus: Bus) -> Service:
        made.put_nowait(service := StartsWithoutBus(bus, stopping))
        return service

    await asyncio.wait_for(serve(nats_url, "waits", make, stopping), 30)
    assert not made.get_nowait().has_stopped, "it had nothing to finish"
