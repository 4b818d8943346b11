"""The bus of a stack, for a command that asks it something."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.local.stack.data_dir import DataDir, StackFile
from shared.bus import Bus
from shared.errors import BusError, StackError

CONNECT_S = 2.0


def stack_on(data_dir: Path, nats: str | None) -> tuple[StackFile | None, str]:
    """The stack of the data directory, None where the given bus is another one's; and the URL of the bus. Raises
    StackError where neither is there."""
    try:
        stack = DataDir(data_dir).read_stack()
    except StackError:
        if nats:
            return None, nats
        raise
    return (stack if nats in (None, "", stack.nats_url) else None), nats or stack.nats_url


@asynccontextmanager
async def bus_at(url: str, name: str, within_s: float = CONNECT_S) -> AsyncIterator[Bus]:
    """A connection that ``name`` holds. Raises StackError where none answers."""
    try:
        bus = await Bus.connect(url, name, within_s)
    except BusError as error:
        raise StackError(f"the stack does not answer: {error}") from error
    try:
        yield bus
    finally:
        await bus.close()
