"""A clock of the day that jumps, forth or back, and is set right after a while."""

from __future__ import annotations

import asyncio
import random

from tests.faults.plan import Planned
from tests.faults.stack.shape import Shape
from tests.faults.stack.stack import Stack

JUMPS_S = (-7200.0, -600.0, -30.0, -2.0, 2.0, 30.0, 600.0, 7200.0)


class ClockJump:
    """One process's; of the machine and of nats-server none is set."""

    name, share = "clock jump", 0.8

    def targets(self, shape: Shape) -> tuple[str, ...]:
        return shape.services

    async def run(self, stack: Stack, planned: Planned) -> str:
        member, seconds = stack.members[planned.target], random.Random(planned.draw).choice(JUMPS_S)
        member.set_clock(seconds)
        try:
            await asyncio.sleep(planned.lasts_s)
        finally:
            member.set_clock(0.0)
        return f"by {seconds:+g} s for {planned.lasts_s:g} s"
