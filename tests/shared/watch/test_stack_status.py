"""What is told of a stack's processes, of which several may have one name."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from shared.bus import Bus
from shared.errors import BusError
from shared.process.service import Details
from shared.protocol import subjects
from shared.protocol.services import ServiceStatus
from shared.watch import stack_status
from shared.watch.stack_status import ask_stack, queue_figures, set_draining
from shared.watch.stack_watch import StackWatch
from tests.shared.bus.servers import running, until


def answer(name: str, pid: int, started_s: float, **details: float | int) -> ServiceStatus:
    told: Details = {**details}
    return ServiceStatus(name, pid, "ok", told, started_s)


def pong(status: ServiceStatus) -> Callable[[object], Awaitable[ServiceStatus]]:
    async def answer(_: object) -> ServiceStatus:
        return status

    return answer


async def test_each_of_several_gateways_is_a_process(nats_url: str, bus: Bus) -> None:
    gateways = [answer("gateway", 7, 20.0, refused_requests=3), answer("gateway", 7, 10.0, refused_requests=4)]
    connections = [await Bus.connect(nats_url, "gateway") for _ in gateways]
    try:
        for connection, status in zip(connections, gateways, strict=True):
            await connection.serve(subjects.PING, object, pong(status))
            await connection.flush()
        report = await ask_stack(bus, lambda: StackWatch().view(0.0))
    finally:
        for connection in connections:
            await connection.close()
    assert [each.details["refused_requests"] for each in report.status.processes] == [4, 3], "the oldest first"
    assert report.status.queues["gateway_refused_requests"] == 7


async def test_who_asks_while_the_bus_is_away_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_status, "OPERATION_TIMEOUT_S", 0.5)
    with running("memory", tmp_path) as server:
        bus = await Bus.connect(server.url, "asker")
        server.kill()
        await until(lambda: not bus.is_connected)
        with pytest.raises(BusError, match=subjects.BUDGETS_BUCKET):
            await asyncio.wait_for(ask_stack(bus, lambda: StackWatch().view(0.0)), 60)
        with pytest.raises(BusError, match=subjects.EXECUTORS_BUCKET):
            await asyncio.wait_for(set_draining(bus, "executor-0", True), 60)
        await bus.close()


def test_what_an_order_goes_by_is_that_of_one_pool() -> None:
    pools = [
        answer("offline-queue-a", 1, 0.0, waiting=2, compute_density=1.5),
        answer("offline-queue-b", 2, 0.0, waiting=3),
    ]
    waiting = answer("offline-queue-a-standby", 3, 0.0, waiting=9)
    figures = queue_figures((), [*pools, waiting])
    assert figures["pool_waiting"] == 5 and "pool_compute_density" not in figures
    assert queue_figures((), [pools[0], waiting])["pool_compute_density"] == 1.5
    assert not [name for name in figures if name.startswith("gateway")], "nobody told of one"
