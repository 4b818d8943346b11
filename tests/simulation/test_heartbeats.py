"""Heartbeats of a run are decoded once, and nobody may change one."""

import asyncio
import random

import pytest

from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.codec import encode
from shared.protocol.executors import Heartbeat
from tests.shared.watch.test_stack_watch import beat
from tests.simulation.heartbeats import MOST_KNOWN, Heartbeats
from tests.simulation.nats import MemoryServer
from tests.simulation.run import in_virtual_time


def test_all_connections_have_the_same() -> None:
    heard: list[Heartbeat] = []

    async def main() -> None:
        server = MemoryServer("memory://heartbeats", random.Random(1))
        server.start()
        buses = [await Bus.connect(server.url, name) for name in ("executor", "gateway", "offline-queue")]

        async def note(heartbeat: Heartbeat) -> None:
            heard.append(heartbeat)

        for bus in buses[1:]:
            await bus.subscribe(subjects.HEARTBEATS, Heartbeat, note)
            await bus.flush()
        for steps in (1, 1, 2):
            await buses[0].publish(subjects.heartbeat("executor-0"), beat(steps=steps))
        await asyncio.sleep(1.0)
        for bus in buses:
            await bus.close()

    in_virtual_time("1", main)
    assert sorted(each.counters.steps for each in heard) == [1, 1, 1, 1, 2, 2]
    assert len({id(each) for each in heard}) == 2


def test_one_that_was_changed_is_noticed() -> None:
    heartbeats, data = Heartbeats(), encode(beat(steps=1))
    heartbeats.decode(data, Heartbeat)
    heartbeats.forget()
    heartbeats.decode(data, Heartbeat).counters.steps = 2
    with pytest.raises(AssertionError, match="was changed"):
        for steps in range(MOST_KNOWN):
            heartbeats.decode(encode(beat(steps=steps + 2)), Heartbeat)
    assert heartbeats.decode(data, Heartbeat) == beat(steps=1)


def test_other_messages_are_decoded_anew() -> None:
    heartbeats, data = Heartbeats(), encode([1])
    assert heartbeats.decode(data, list) == heartbeats.decode(data, list) == [1]
    assert heartbeats.decode(data, list) is not heartbeats.decode(data, list)
