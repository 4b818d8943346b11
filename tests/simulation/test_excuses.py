"""What a process that was started again is not blamed for."""

import asyncio
from typing import cast

import pytest

from shared.errors import BusError, EngineLostError, LeaseLostError
from tests.checker.history import Event, History, Start
from tests.simulation.loop import VirtualLoop
from tests.simulation.process import Process
from tests.simulation.run import in_virtual_time
from tests.simulation.services import Machine
from tests.simulation.supervisor import DISTURBED_S, Supervisor
from tests.simulation.world import STARTING_S, was_ending, was_starting

NOW_S = 600.0
CUT_OFF, HUNG = (Event(0, kind, "executor-0", NOW_S - 2.0, until_s=NOW_S - 1.0) for kind in ("cut", "hang"))
LONG_AGO = Event(0, "cut", "executor-0", 1.0, until_s=NOW_S - DISTURBED_S - 1.0)
NO_BUS = Event(0, "bus-kill", "bus", NOW_S - 1.0)
OF_ANOTHER = Event(0, "cut", "gateway-0", NOW_S - 1.0)


@pytest.mark.parametrize(
    ("name", "error", "at_work_s", "event", "excuse"),
    [
        ("executor-0", BusError("away"), None, CUT_OFF, "cut"),
        ("executor-0", BusError("away"), None, NO_BUS, "bus-kill"),
        ("executor-0", BusError("away"), None, LONG_AGO, ""),
        ("executor-0", BusError("away"), None, OF_ANOTHER, ""),
        ("executor-0", BusError("away"), 1.0, CUT_OFF, ""),
        ("executor-0", BusError("away"), NOW_S - 12.0, CUT_OFF, "cut"),
        ("executor-0", KeyError("a defect"), NOW_S - 12.0, CUT_OFF, ""),
        ("executor-0", KeyError("a defect"), None, CUT_OFF, ""),
        ("executor-0", LeaseLostError("taken"), 1.0, CUT_OFF, ""),
        ("executor-0", EngineLostError("hangs"), 1.0, HUNG, "hang"),
        ("executor-0", EngineLostError("hangs"), 1.0, CUT_OFF, ""),
        ("executor-0", None, 1.0, CUT_OFF, ""),
        ("offline-queue", LeaseLostError("taken"), 1.0, NO_BUS, "bus-kill"),
        ("offline-queue", LeaseLostError("taken"), 1.0, OF_ANOTHER, ""),
        ("offline-queue", BusError("away"), 1.0, NO_BUS, ""),
        ("offline-queue", KeyError("a defect"), 1.0, NO_BUS, ""),
    ],
)
def test_who_ends_by_itself_is_excused_by_what_was_done_to_it(
    name: str, error: BaseException | None, at_work_s: float | None, event: Event, excuse: str
) -> None:
    async def main() -> str:
        loop, seen = cast(VirtualLoop, asyncio.get_running_loop()), History(events=[event])
        supervisor = Supervisor(loop, cast(Machine, None), seen)
        process = Process(loop, name, 1, lambda process, status: None)
        process.error, process.at_work_s = error, at_work_s
        await asyncio.sleep(NOW_S)
        return supervisor._excuse(process, Start(0.0, 1))

    assert in_virtual_time("1", main)[0] == excuse


@pytest.mark.parametrize(("more_s", "excuse"), [(0.0, ""), (5.0, "cut")])
def test_with_slower_knobs_a_fault_is_felt_for_longer(more_s: float, excuse: str) -> None:
    async def main() -> str:
        loop = cast(VirtualLoop, asyncio.get_running_loop())
        supervisor = Supervisor(loop, cast(Machine, None), History(events=[LONG_AGO]), DISTURBED_S + more_s)
        process = Process(loop, "executor-0", 1, lambda process, status: None)
        process.error = BusError("away")
        await asyncio.sleep(NOW_S)
        return supervisor._excuse(process, Start(0.0, 1))

    assert in_virtual_time("1", main)[0] == excuse


@pytest.mark.parametrize(
    ("started_s", "excuse"), [(NOW_S - 5.0, "bus-power"), (NOW_S - 60.0, "bus-power"), (NOW_S - 0.5, "")]
)
def test_an_executor_may_be_replaced_where_the_bus_may_have_lost_its_lease(started_s: float, excuse: str) -> None:
    async def main() -> str:
        loop = cast(VirtualLoop, asyncio.get_running_loop())
        cut = Event(0, "bus-power", "bus", NOW_S - 2.0)
        seen = History(events=[cut], not_synced=[(NOW_S - 12.0, NOW_S - 2.0)])
        process = Process(loop, "executor-0", 1, lambda process, status: None)
        process.error, process.at_work_s = LeaseLostError("taken"), started_s
        await asyncio.sleep(NOW_S)
        start = Start(started_s - 1.0, 1, started_s=started_s)
        return Supervisor(loop, cast(Machine, None), seen)._excuse(process, start)

    assert in_virtual_time("1", main)[0] == excuse


def test_a_gateway_that_has_not_started_does_not_listen() -> None:
    assert was_starting(Start(100.0, 1), 200.0)
    late = Start(100.0, 1, started_s=165.0)
    assert was_starting(late, 164.0) and not was_starting(late, 166.0)
    soon = Start(100.0, 1, started_s=101.0)
    assert was_starting(soon, 100.0 + STARTING_S / 2) and not was_starting(soon, 101.0 + STARTING_S)


def test_a_gateway_that_ends_by_an_error_does_not_listen_while_it_closes() -> None:
    failed = Start(0.0, 1, ended_s=100.0, status=1)
    assert was_ending(failed, 95.5) and not was_ending(failed, 94.5)
    killed = Start(0.0, 1, ended_s=100.0, status=-9)
    assert was_ending(killed, 100.0) and not was_ending(killed, 99.5)
    told = Start(0.0, 1, ended_s=100.0, status=0, told_s=90.0)
    assert was_ending(told, 90.0) and not was_ending(told, 89.5)
    assert not was_ending(Start(0.0, 1), 1e9)
