"""A kind of fault: whom it can hit, and what it does, from its beginning to its end."""

from __future__ import annotations

from typing import Protocol

from tests.faults.plan import Planned
from tests.faults.stack.shape import Shape
from tests.faults.stack.stack import Stack


class Fault(Protocol):
    """``share``: how often it is drawn, beside the others' shares."""

    @property
    def name(self) -> str: ...

    @property
    def share(self) -> float: ...

    def targets(self, shape: Shape) -> tuple[str, ...]:
        """None where it cannot be done to such a stack, or on this machine."""

    async def run(self, stack: Stack, planned: Planned) -> str:
        """Do it, and undo it where it does not end by itself; what there is to say of it."""
