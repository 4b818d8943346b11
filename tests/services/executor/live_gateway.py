"""A gateway that is there: an executor that hears nothing of one for some seconds stops its requests."""

from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.requests import AbortRequests, HeldRequests

GATEWAY = "gateway-test"


async def be_there(bus: Bus) -> None:
    """Whenever an executor asks, for as long as the connection lasts; and wait for all that the executor holds."""

    async def alive(_: HeldRequests) -> AbortRequests:
        return AbortRequests([])

    await bus.serve(subjects.alive(GATEWAY), HeldRequests, alive)
    await bus.flush()
