"""Processes that are killed, ended, stopped for a while, or away for one."""

from __future__ import annotations

import asyncio
import signal

from tests.faults.plan import Planned
from tests.faults.stack.shape import Shape
from tests.faults.stack.stack import Stack

NOT_THERE = "it was not running"


class _OfAProcess:
    """Any of them, nats-server included."""

    def targets(self, shape: Shape) -> tuple[str, ...]:
        return shape.names


class Killed(_OfAProcess):
    """SIGKILL; started again at once."""

    name, share = "killed", 3.0

    async def run(self, stack: Stack, planned: Planned) -> str:
        member = stack.members[planned.target]
        if not member.is_running():
            return NOT_THERE
        member.kill(self.name)
        return ""


class Terminated(_OfAProcess):
    """SIGTERM, as from whoever runs the machine; started again when it has ended."""

    name, share = "terminated", 1.5

    async def run(self, stack: Stack, planned: Planned) -> str:
        member = stack.members[planned.target]
        if not member.is_running():
            return NOT_THERE
        member.terminate(self.name)
        return ""


class Stopped(_OfAProcess):
    """SIGSTOP, and SIGCONT later."""

    name, share = "stopped", 2.0

    async def run(self, stack: Stack, planned: Planned) -> str:
        member = stack.members[planned.target]
        if not member.signal(signal.SIGSTOP):
            return NOT_THERE
        try:
            await asyncio.sleep(planned.lasts_s)
        finally:
            member.signal(signal.SIGCONT)
        return f"{planned.lasts_s:g} s"


class Away(_OfAProcess):
    """SIGKILL, and started again only after a while."""

    name, share = "away", 1.0

    async def run(self, stack: Stack, planned: Planned) -> str:
        member = stack.members[planned.target]
        await member.take_away(self.name)
        try:
            await asyncio.sleep(planned.lasts_s)
        finally:
            member.start()
        return f"{planned.lasts_s:g} s"
