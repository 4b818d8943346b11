"""What is told of a stack's processes, of which several may have one name."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from shared.bus import Bus
from shared.errors import BusError, NoResponderError
from shared.process.service import Details
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo, Heartbeat, SetDraining
from shared.protocol.handover import SetRole
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource, SloReport, SloState, SloStatus
from shared.protocol.services import ServiceStatus
from shared.scheduling.placement.role import Role
from shared.watch import stack_status
from shared.watch.stack_status import (
    ANSWER_S,
    PING_WAIT_S,
    ask_stack,
    figure_text,
    ping_all,
    queue_figures,
    set_draining,
    set_role,
    slo_report,
)
from shared.watch.stack_watch import StackWatch
from tests.shared.bus.servers import running, until
from tests.shared.watch.test_stack_watch import INFO, SPEC, beat
from tests.simulation.nats import MemoryServer
from tests.simulation.nats.test_faults import in_virtual_time


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


def of_model(executor_id: str, model: str, profile_key: str) -> Heartbeat:
    spec = replace(SPEC, model=model)
    told = beat(replace(INFO, executor_id=executor_id, profile_key=profile_key, spec=spec))
    return replace(told, online_waiting=1, online_running=2, offline_waiting=3, offline_running=4)


async def test_a_report_is_all_that_was_said_and_seen(bus: Bus) -> None:
    processes = [answer("gateway", 9, 10.0), answer("gateway", 7, 10.0), answer("executor-0", 12, 30.0, steps=5)]
    for status in processes:
        await bus.serve(subjects.PING, object, pong(status))
    budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    for key in ("key-b", "left", "key-a"):
        await budgets.put(key, BudgetRecord(key, 30.0, BudgetSource.SLO))
    kept, left = (SloStatus(key, SloState.PROFILED, 30.0, BudgetSource.SLO, []) for key in ("key-a", "left"))

    async def report_slos(_: object) -> SloReport:
        return SloReport(["tbt_ms p99 <= 50"], [kept, left])

    await bus.serve(subjects.SLO_STATUS, object, report_slos)
    watch, beats = StackWatch(), [of_model("executor-0", "n", "key-b"), of_model("executor-1", "m", "key-a")]
    for each in beats:
        watch.on_heartbeat(0.0, each)
    view = watch.view(0.0)
    report = await ask_stack(bus, lambda: view)
    assert report.view is view
    status = report.status
    assert (status.url, status.nats, status.model, status.ready) == (None, None, "m, n", None)
    assert [(each.name, each.pid) for each in status.processes] == [("executor-0", 12), ("gateway", 7), ("gateway", 9)]
    assert [(each.health, each.restarts) for each in status.processes] == [("ok", None)] * 3
    assert status.processes[0].details == {"steps": 5}
    assert status.executors == beats and status.slos == [kept], "none of executors that were there before"
    assert [each.profile_key for each in status.budgets] == ["key-a", "key-b"], "none that is left from before"
    assert status.queues == {"online_waiting": 2, "online_running": 4, "offline_waiting": 6, "offline_running": 8}


async def test_a_stack_of_which_nothing_is_there_is_nothing(bus: Bus) -> None:
    status = (await ask_stack(bus, lambda: StackWatch().view(0.0))).status
    assert status.model is None and not (status.processes or status.executors or status.budgets or status.slos)


@in_virtual_time
async def test_answers_are_waited_for_as_long_as_who_asks_likes(server: MemoryServer, one: Bus, two: Bus) -> None:
    """One who asks for a report may wait longer than one who looks who is there."""
    late_s = 0.5 * (PING_WAIT_S + ANSWER_S)

    async def late(_: object) -> ServiceStatus:
        await asyncio.sleep(late_s)
        return answer("gateway", 7, 10.0)

    await two.serve(subjects.PING, object, late)
    await two.flush()
    report = await ask_stack(one, lambda: StackWatch().view(0.0))
    assert [each.name for each in report.status.processes] == ["gateway"]
    assert await ping_all(one) == {}
    await asyncio.sleep(late_s)
    assert await ping_all(one, 2 * late_s) == {"gateway": answer("gateway", 7, 10.0)}


@in_virtual_time
async def test_a_profiler_that_does_not_answer_is_not_waited_for(server: MemoryServer, one: Bus, two: Bus) -> None:
    async def deaf(_: object) -> None:
        await asyncio.Event().wait()

    now_s = asyncio.get_running_loop().time
    begun_s = now_s()
    assert await slo_report(one) == SloReport([], []), "nobody is there"
    assert now_s() - begun_s < 0.1
    await two.serve(subjects.SLO_STATUS, object, deaf)
    await two.flush()
    begun_s = now_s()
    assert await slo_report(one) == SloReport([], [])
    assert now_s() - begun_s == pytest.approx(ANSWER_S, abs=0.1)


async def test_an_order_is_obeyed_by_the_executor_that_it_names(bus: Bus) -> None:
    obeyed: list[SetDraining | SetRole] = []

    async def drain(order: SetDraining) -> Heartbeat:
        obeyed.append(order)
        return beat(draining=order.draining)

    async def become(order: SetRole) -> Heartbeat:
        obeyed.append(order)
        return beat(replace(INFO, role=order.role))

    await bus.serve(subjects.drain("executor-0"), SetDraining, drain)
    await bus.serve(subjects.role("executor-0"), SetRole, become)
    for draining in (True, False):
        assert (await set_draining(bus, "executor-0", draining)).draining is draining
    assert (await set_role(bus, "executor-0", Role.STRICT)).info.role is Role.STRICT
    assert obeyed == [SetDraining(True), SetDraining(False), SetRole(Role.STRICT)]


@pytest.mark.parametrize(
    ("registered", "known"), [((), "none"), (("executor-1", "executor-0"), "executor-0, executor-1")]
)
@pytest.mark.parametrize("executor_id", ["executor-7", "executor.*"])
async def test_an_order_to_nobody_names_those_that_there_are(
    bus: Bus, registered: tuple[str, ...], known: str, executor_id: str
) -> None:
    executors = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    for each in registered:
        await executors.put(each, replace(INFO, executor_id=each))
    for order in (set_draining(bus, executor_id, True), set_role(bus, executor_id, Role.STRICT)):
        with pytest.raises(NoResponderError) as refused:
            await order
        assert str(refused.value) == f"no executor {executor_id} answers; registered: {known}"


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


def test_figures_that_are_no_counts_are_not_added_up() -> None:
    odd = ServiceStatus("offline-queue", 1, "ok", {"waiting": "many", "running": None, "batches": 3, "preset": "ooco"})
    other = answer("offline-queue-b", 2, 0.0, batches=4)
    assert {name: each for name, each in queue_figures((), [odd, other]).items() if name.startswith("pool")} == {
        "pool_batches": 7
    }


def test_whom_gateways_turned_away_they_tell_alone() -> None:
    told = [answer("gateway", 1, 0.0, refused_requests=3), answer("predictor", 2, 0.0, refused_requests=9)]
    assert queue_figures((), told)["gateway_refused_requests"] == 3


@pytest.mark.parametrize(
    ("figure", "shown"),
    [(0.012345, "0.0123"), (1234.5, "1.23e+03"), (12345, "12345"), ("hygen", "hygen"), (None, "None")],
)
def test_a_figure_as_people_read_it(figure: float | str | None, shown: str) -> None:
    assert figure_text(figure) == shown
