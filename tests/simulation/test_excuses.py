"""What a process that was started again is not blamed for."""

import asyncio
from typing import cast

from tests.checker.history import Event, History, Start
from tests.simulation.loop import VirtualLoop
from tests.simulation.run import in_virtual_time
from tests.simulation.services import Machine
from tests.simulation.supervisor import STARTING_S as PROCESS_STARTING_S
from tests.simulation.supervisor import Supervisor
from tests.simulation.world import STARTING_S, was_starting


def test_one_that_has_not_started_may_end_however_long_that_takes_while_there_are_faults() -> None:
    late_s = 10 * PROCESS_STARTING_S

    async def main() -> list[str]:
        loop, seen = cast(VirtualLoop, asyncio.get_running_loop()), History()
        supervisor = Supervisor(loop, cast(Machine, None), seen)
        await asyncio.sleep(late_s)
        never, early = Start(0.0, 1), Start(0.0, 2, started_s=5.0)
        undisturbed = supervisor._excuse("executor-0", never, late_s)
        seen.events.append(Event(0, "cut", "executor-0", late_s - 1.0, until_s=late_s))
        return [undisturbed, *(supervisor._excuse("executor-0", each, late_s) for each in (never, early))]

    assert in_virtual_time("1", main)[0] == ["", "disturbed", ""]


def test_a_gateway_that_has_not_started_does_not_listen() -> None:
    assert was_starting(Start(100.0, 1), 200.0)
    late = Start(100.0, 1, started_s=165.0)
    assert was_starting(late, 164.0) and not was_starting(late, 166.0)
    soon = Start(100.0, 1, started_s=101.0)
    assert was_starting(soon, 100.0 + STARTING_S / 2) and not was_starting(soon, 101.0 + STARTING_S)
