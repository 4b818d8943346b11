"""When clients come."""

import asyncio
import random
from collections.abc import Callable, Coroutine

Work = Coroutine[object, object, None]


async def at_random(rate: float, seed: int, begin: Callable[[random.Random], Work]) -> None:
    """``rate`` a second, Poisson, whatever becomes of those before. Never returns."""
    rng = random.Random(seed)
    async with asyncio.TaskGroup() as tasks:
        while True:
            await asyncio.sleep(rng.expovariate(rate))
            tasks.create_task(begin(rng))


async def side_by_side(num_clients: int, client: Callable[[], Work]) -> None:
    """So many at a time; returns when each has ended."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(num_clients):
            tasks.create_task(client())
