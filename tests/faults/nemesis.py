"""Who does the faults: each at its time, several at once, one at a time to each target."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.checker.history import Event
from tests.faults.kinds.registry import FAULTS
from tests.faults.plan import Planned
from tests.faults.stack.stack import Stack

AT_ONCE = 5


class Nemesis:
    """``at_once``: as many; ``tell`` is called with each event when it has ended."""

    def __init__(self, stack: Stack, tell: Callable[[Event], None], at_once: int = AT_ONCE) -> None:
        self._stack = stack
        self._tell = tell
        self._places = asyncio.Semaphore(at_once)

    async def run(self, planned: Sequence[Planned]) -> None:
        """Return when all of them are over."""
        async with asyncio.TaskGroup() as tasks:
            for each in planned:
                await self._places.acquire()
                await asyncio.sleep(each.wait_s)
                tasks.create_task(self._do(each))

    async def _do(self, planned: Planned) -> None:
        try:
            async with self._stack.locks[planned.target]:
                event = self._stack.begin(planned.kind, planned.target, planned.number)
                event.note = await FAULTS[planned.kind].run(self._stack, planned)
                event.until_s = self._stack.now()
        finally:
            self._places.release()
        self._tell(event)
