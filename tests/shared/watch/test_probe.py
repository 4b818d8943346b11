"""Executors that have left the bus are lost before their heartbeats are missed."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from shared.bus import Bus
from shared.errors import NobodyListensError, NoResponderError
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.watch.probe import EXECUTOR_INTERVAL_S, Probe, executor_probe
from tests.services.gateway.live.test_tracker import Front, Peer, alive, front, peer
from tests.simulation.run import in_virtual_time

__all__ = ["front", "peer"]


@pytest.fixture
async def probe(bus: Bus, front: Front) -> AsyncIterator[Probe[ExecutorInfo]]:
    made = executor_probe(bus, lambda: [each.info for each in front.registry.live()], front.registry.lose)
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()


async def test_one_that_left_is_lost_and_what_it_ran_goes_on_elsewhere(
    nats_url: str, bus: Bus, front: Front, peer: Peer, probe: Probe[ExecutorInfo], caplog: pytest.LogCaptureFixture
) -> None:
    own_bus = await Bus.connect(nats_url, "executor-9")
    leaving = await alive(Peer(own_bus, "executor-9"), front)
    await peer.beat(draining=True)
    await front.until(lambda: len(front.registry.available()) == 1)
    generation = await front.submit()
    sent = await leaving.next_request()
    await leaving.send(sent.request_id, [5])
    assert await generation.next_tokens() == [5]
    await peer.beat()
    await own_bus.close()
    assert (await peer.next_request()).output_token_ids == [5]
    assert [executor.info.executor_id for executor in front.registry.live()] == ["executor-0"]
    (lost,) = [record for record in caplog.records if record.message == "executor lost"]
    assert (vars(lost)["executor_id"], vars(lost)["why"]) == ("executor-9", "left the bus")


async def test_one_that_does_not_answer_is_left_to_its_heartbeats(
    bus: Bus, front: Front, probe: Probe[ExecutorInfo]
) -> None:
    asked = asyncio.Event()
    never = asyncio.Event()

    async def deaf(_: object) -> None:
        asked.set()
        await never.wait()

    busy = Peer(bus, "executor-0")
    await bus.serve(subjects.executor_alive("executor-0"), object, deaf)
    await busy.beat()
    await asyncio.wait_for(asked.wait(), 10)
    with pytest.raises(NoResponderError) as unanswered:
        await bus.request(subjects.executor_alive("executor-0"), None, object, timeout_s=0.05)
    assert not isinstance(unanswered.value, NobodyListensError)
    assert [executor.info.executor_id for executor in front.registry.live()] == ["executor-0"]
    with pytest.raises(NobodyListensError):
        await bus.request(subjects.executor_alive("executor-1"), None, object)
    never.set()


def test_while_there_is_no_work_it_looks_for_nobody() -> None:
    """In virtual time."""
    looks, work = list[float](), list[str]()

    async def main() -> None:
        now_s = asyncio.get_running_loop().time

        def live() -> list[ExecutorInfo]:
            looks.append(now_s())
            return []

        probe = executor_probe(cast(Bus, None), live, lambda _: None, lambda: not work)
        running = asyncio.create_task(probe.run())
        await asyncio.sleep(1000.0)
        probe.look()  # there is none after all
        await asyncio.sleep(1000.0)
        work.append("a request")
        probe.look()
        await asyncio.sleep(3.5 * EXECUTOR_INTERVAL_S)
        work.clear()
        await asyncio.sleep(1000.0)
        running.cancel()

    in_virtual_time("1", main)
    assert looks == [2000.0 + count * EXECUTOR_INTERVAL_S for count in (1, 2, 3, 4)]
