"""A disk of nats-server's that is full for a while, and one whose power is cut."""

from __future__ import annotations

import asyncio

from tests.faults.plan import Planned
from tests.faults.stack.shape import NATS, Shape
from tests.faults.stack.stack import Stack
from tests.faults.stack.store import Disk


class FullDisk:
    """Nothing can be written for a while. A stream of nats-server's that has met this takes nothing more until the
    server is started again, which whoever runs it has to do."""

    name, share = "full disk", 0.4

    def targets(self, shape: Shape) -> tuple[str, ...]:
        return (NATS,) if shape.has_disk else ()

    async def run(self, stack: Stack, planned: Planned) -> str:
        disk = stack.store
        assert isinstance(disk, Disk)
        try:
            await asyncio.to_thread(disk.fill)
            await asyncio.sleep(planned.lasts_s)
        finally:
            await asyncio.to_thread(disk.free)
        stack.members[NATS].kill(self.name)
        return f"{planned.lasts_s:g} s"


class PowerCut:
    """nats-server is gone with all that it had not synced, and comes back with what is on its disk."""

    name, share = "power cut", 0.6

    def targets(self, shape: Shape) -> tuple[str, ...]:
        return (NATS,) if shape.has_disk else ()

    async def run(self, stack: Stack, planned: Planned) -> str:
        disk = stack.store
        assert isinstance(disk, Disk)
        member = stack.members[NATS]
        await member.take_away(self.name)
        try:
            await asyncio.to_thread(disk.lose_power)
        finally:
            member.start()
        return ""
