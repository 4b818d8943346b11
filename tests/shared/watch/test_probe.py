"""Executors that have left the bus are lost before their heartbeats are missed, and so are gateways."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest

from shared.bus import Bus, Subscription
from shared.bus.lease import Lease
from shared.errors import NobodyListensError, NoResponderError
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.requests import AbortRequests, HeldRequests
from shared.watch.probe import EXECUTOR_INTERVAL_S, GATEWAY_INTERVAL_S, MISSES, Probe, executor_probe, gateway_probe
from tests.services.gateway.live.test_tracker import Front, Peer, alive, front, peer
from tests.shared.bus.servers import until
from tests.shared.watch.test_stack_watch import INFO
from tests.simulation.loop import VirtualLoop
from tests.simulation.nats import MemoryServer
from tests.simulation.nats.test_faults import in_virtual_time
from tests.simulation.process import ProcessClock

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
    bus: Bus, front: Front, probe: Probe[ExecutorInfo], caplog: pytest.LogCaptureFixture
) -> None:
    """Who looks into that finds it in the log."""
    caplog.set_level(logging.DEBUG, "shared.watch.probe")
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
    await until(lambda: "not asked" in caplog.messages)
    assert [executor.info.executor_id for executor in front.registry.live()] == ["executor-0"]
    (told,) = {(vars(each)["subject"], vars(each)["why"]) for each in caplog.records if each.message == "not asked"}
    assert told == (subjects.executor_alive("executor-0"), str(unanswered.value))
    with pytest.raises(NobodyListensError):
        await bus.request(subjects.executor_alive("executor-1"), None, object)
    never.set()


@in_virtual_time
async def test_while_there_is_no_work_it_looks_for_nobody(server: MemoryServer, one: Bus, two: Bus) -> None:
    looks, work = list[float](), list[str]()
    now_s = asyncio.get_running_loop().time
    begun_s = now_s()

    def live() -> list[ExecutorInfo]:
        looks.append(now_s() - begun_s)
        return []

    probe = executor_probe(one, live, lambda _: None, lambda: not work)
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
    assert looks == pytest.approx([2000.0 + count * EXECUTOR_INTERVAL_S for count in (1, 2, 3, 4)])


@in_virtual_time
async def test_who_misses_several_questions_in_a_row_is_gone(server: MemoryServer, one: Bus, two: Bus) -> None:
    """And nobody who is back for one of them; whoever was gone and is there again begins anew."""
    live, gone = [INFO], list[ExecutorInfo]()

    def lose(info: ExecutorInfo) -> None:
        gone.append(info)
        live.remove(info)

    async def here(_: object) -> str:
        return INFO.epoch

    async def is_asked(listens: bool) -> None:
        """Once, as it is in the middle between two questions."""
        listening: Subscription | None = None
        if listens:
            listening = await two.serve(subjects.executor_alive(INFO.executor_id), object, here)
        await asyncio.sleep(EXECUTOR_INTERVAL_S)
        if listening is not None:
            await listening.stop()

    running = asyncio.create_task(executor_probe(one, lambda: live, lose).run())
    await asyncio.sleep(0.5 * EXECUTOR_INTERVAL_S)
    for listens in [True, *[False] * (MISSES - 1)] * 3 + [True, *[False] * MISSES]:
        assert not gone
        await is_asked(listens)
    assert gone == [INFO] and not live
    await is_asked(False)
    live.append(INFO)
    for _ in range(MISSES):
        assert gone == [INFO]
        await is_asked(False)
    assert gone == [INFO, INFO]
    running.cancel()


def held(gateway_id: str) -> HeldRequests:
    return HeldRequests("executor-0", "epoch", [f"{gateway_id}-1", f"{gateway_id}-2"])


def always() -> bool:
    return True


def answering(unwanted: list[str], told: list[HeldRequests]) -> Callable[[HeldRequests], Awaitable[AbortRequests]]:
    async def answer(held_there: HeldRequests) -> AbortRequests:
        told.append(held_there)
        return AbortRequests(unwanted)

    return answer


@in_virtual_time
async def test_gateways_are_told_what_is_held_and_tell_what_they_do_not_wait_for(
    server: MemoryServer, one: Bus, two: Bus
) -> None:
    told, aborted, gone = list[HeldRequests](), list[list[str]](), list[str]()
    for gateway_id, unwanted in (("a", ["a-2"]), ("b", [])):
        await two.serve(subjects.alive(gateway_id), HeldRequests, answering(unwanted, told))
    await two.flush()
    probe = gateway_probe(one, lambda: ("a", "b"), gone.append, held, aborted.append, always)
    running = asyncio.create_task(probe.run())
    await asyncio.sleep(2.5 * GATEWAY_INTERVAL_S)
    running.cancel()
    assert told == [held("a"), held("b")] * 2
    assert aborted == [["a-2"]] * 2 and not gone


@in_virtual_time
async def test_a_gateway_that_does_not_answer_in_time_is_gone(server: MemoryServer, one: Bus, two: Bus) -> None:
    """An executor may be busy; a gateway that does not answer serves nobody."""
    told, gone_s = list[HeldRequests](), dict[str, float]()
    now_s = asyncio.get_running_loop().time

    async def deaf(_: HeldRequests) -> None:
        await asyncio.Event().wait()

    def note(gateway_id: str) -> None:
        gone_s.setdefault(gateway_id, now_s() - begun_s)

    await two.serve(subjects.alive("deaf"), HeldRequests, deaf)
    await two.serve(subjects.alive("well"), HeldRequests, answering([], told))
    await two.flush()
    begun_s = now_s()
    probe = gateway_probe(one, lambda: ("deaf", "well"), note, held, lambda _: None, always)
    running = asyncio.create_task(probe.run())
    await asyncio.sleep(20 * GATEWAY_INTERVAL_S)
    running.cancel()
    assert gone_s == {"deaf": pytest.approx(MISSES * 2 * GATEWAY_INTERVAL_S, abs=0.1)}, "each time after a wait as long"
    assert len(told) == 10


@in_virtual_time
async def test_while_its_own_link_is_silent_nobody_is_gone(server: MemoryServer, one: Bus, two: Bus) -> None:
    """Who ends meanwhile is gone soon after."""
    told, gone = list[HeldRequests](), list[str]()
    lease = Lease(one, "executor-0", ProcessClock(cast(VirtualLoop, asyncio.get_running_loop()), 0.0))
    await lease.take(lambda _: None)
    keeping = asyncio.create_task(lease.keep())
    await two.serve(subjects.alive("well"), HeldRequests, answering([], told))
    leaving = await two.serve(subjects.alive("leaving"), HeldRequests, answering([], told))
    await two.flush()
    names = "well", "leaving"
    probe = gateway_probe(one, lambda: names, gone.append, held, lambda _: None, lambda: lease.is_answered)
    running = asyncio.create_task(probe.run())
    for silent_s in (4.5, 5.5, 6.5, 8.0, 12.0, 30.0, 100.0):  # in the last the connection is lost
        await asyncio.sleep(3.1 * GATEWAY_INTERVAL_S)
        server.link("one").cut()
        await asyncio.sleep(silent_s)
        server.link("one").heal()
        await until(lambda: one.is_connected, 10)
    assert one.reconnects == 1
    assert not gone
    server.link("one").cut()
    await leaving.stop()
    await asyncio.sleep(12.0)
    server.link("one").heal()
    num_told = len(told)
    await asyncio.sleep(5 * GATEWAY_INTERVAL_S)
    assert set(gone) == {"leaving"} and len(told) > num_told
    for task in (running, keeping):
        task.cancel()
