"""Processes of the version before that are ended in order, and started as this one."""

from __future__ import annotations

from tests.faults.plan import Planned
from tests.faults.stack.shape import Shape
from tests.faults.stack.stack import Stack


class Upgraded:
    """One that is of this version already is started anew."""

    name, share = "upgraded", 1.0

    def targets(self, shape: Shape) -> tuple[str, ...]:
        return shape.services if shape.before is not None else ()

    async def run(self, stack: Stack, planned: Planned) -> str:
        member = stack.members[planned.target]
        await member.stop(self.name)
        member.become(stack.upgraded(planned.target))
        member.start()
        return ""
