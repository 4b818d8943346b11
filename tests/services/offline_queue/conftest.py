"""A desk of batches on a fresh bus."""

import time

import pytest

from shared.bus import Bus
from tests.services.offline_queue.batch_desk import Desk, ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """As far as the server's, which dates what it stores."""
    return ManualClock(time.time())


@pytest.fixture
async def desk(nats_url: str, bus: Bus, clock: ManualClock) -> Desk:
    return await Desk.open(nats_url, bus, clock)
