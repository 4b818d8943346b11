"""What is measured again where a request in it failed."""

import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

MAX_TRIES = 3


async def tried(make: Callable[[], Awaitable[T]], name: str) -> T:
    """What the first of ``MAX_TRIES`` gives in which no connection is refused or cut. Each that fails is told on the
    standard error; raises the OSError of the last one."""
    for attempt in range(1, MAX_TRIES):
        try:
            return await make()
        except OSError as error:
            print(f"{name}: try {attempt} is made again: {error}", file=sys.stderr)
    return await make()
