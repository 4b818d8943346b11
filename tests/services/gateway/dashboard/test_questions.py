"""What is told of services that were asked: of each process by itself, whatever it is called."""

from collections.abc import Awaitable, Callable

from services.gateway.dashboard.questions import StackAnswers, StackQuestions
from shared.bus import Bus
from shared.clock import SystemClock
from shared.protocol import subjects
from shared.protocol.services import ServiceStatus

Pong = Callable[[object], Awaitable[ServiceStatus]]
WAITS = "waits: pid 12 on host-a is at work"


def pong(status: ServiceStatus) -> Pong:
    async def answer(_: object) -> ServiceStatus:
        return status

    return answer


async def answers(nats_url: str, bus: Bus, *statuses: ServiceStatus) -> StackAnswers:
    """Of a stack of these, each with a connection of its own."""
    connections = [await Bus.connect(nats_url, status.name) for status in statuses]
    try:
        for connection, status in zip(connections, statuses, strict=True):
            await connection.serve(subjects.PING, object, pong(status))
            await connection.flush()
        return await StackQuestions(bus, SystemClock(), ["model"]).ask()
    finally:
        for connection in connections:
            await connection.close()


def well(name: str, pid: int = 7, started_s: float = 10.0, health: str = "ok") -> ServiceStatus:
    """Pid 7: in containers all are alike."""
    return ServiceStatus(name, pid, health, {}, started_s)


async def test_one_that_stands_by_is_no_fault(nats_url: str, bus: Bus) -> None:
    others = [well(name) for name in ("offline-queue", "predictor", "profiler")]
    told = await answers(nats_url, bus, *others, well("offline-queue-standby", health=WAITS))
    assert told.unwell == [] and told.up["offline-queue-standby"]
    assert [each.health for each in told.processes] == ["ok", WAITS, "ok", "ok"], "it says so all the same"


async def test_each_of_several_gateways_is_told_of(nats_url: str, bus: Bus) -> None:
    gateways = [well("gateway", started_s=10.0), well("gateway", started_s=20.0, health="no executor is alive")]
    told = await answers(nats_url, bus, *gateways, well("offline-queue"), well("predictor"), well("profiler"))
    assert [each.started_s for each in told.processes if each.name == "gateway"] == [10.0, 20.0]
    assert told.unwell == ["gateway (pid 7): no executor is alive"]
    assert told.up == {"gateway": False, "offline-queue": True, "predictor": True, "profiler": True}


async def test_where_nobody_answers_it_is_the_bus(bus: Bus) -> None:
    """The gateway that asks would answer itself, whoever else is gone: a server that hangs is told of as one that is
    away, and metrics say of no service that it is not well."""
    told = await StackQuestions(bus, SystemClock(), ["model"]).ask()
    assert told.unwell == ["the bus does not answer: what is shown is old"] and told.up == {}
