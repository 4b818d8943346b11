"""The offline-queue over a real bus, while executors that the test plays hand requests to each other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from services.offline_queue.service import OfflineQueueService
from services.offline_queue.settings import OfflineQueueSettings
from shared.bus import Bus
from shared.clock import SystemClock
from shared.protocol import subjects
from shared.protocol.executors import ExecutorCounters, ExecutorInfo, Heartbeat
from shared.protocol.handover import Place, Taken
from shared.protocol.offline.flex import FlexAnswer, FlexHeld, FlexMessage, FlexSubmit
from shared.protocol.offline.learnt import LearntBy
from shared.protocol.requests import AbortRequests, GenerateRequest, InboxMessage
from shared.protocol.sampling import SamplingParams
from shared.protocol.steps import PlanSource, StepPlan, StepStarted
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.placement.role import Role
from shared.scheduling.request import Kind, Request
from shared.scheduling.strategy import Strategy
from tests.services.offline_queue.batch_desk import MODEL, TOKENIZER, WORK
from tests.shared.replica.factories import make_info

STRATEGY = Strategy.of("sarathi++")
GATEWAY = "gateway-flex"


@dataclass
class Peer:
    """An executor's side of the bus."""

    bus: Bus
    info: ExecutorInfo
    plans: asyncio.Queue[StepPlan] = field(default_factory=asyncio.Queue)
    aborts: asyncio.Queue[AbortRequests | GenerateRequest] = field(default_factory=asyncio.Queue)

    @classmethod
    async def registered(cls, bus: Bus, executor_id: str, role: Role) -> Peer:
        info = make_info(STRATEGY, executor_id=executor_id, role=role, model=MODEL.name)
        peer = cls(bus, info)
        await bus.subscribe(subjects.plan(executor_id), StepPlan, peer.plans.put)
        await bus.subscribe(subjects.inbox(executor_id), InboxMessage, peer.aborts.put)
        await bus.serve(subjects.executor_alive(executor_id), object, peer.alive)
        await bus.flush()
        await (await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)).put(executor_id, info)
        return peer

    async def alive(self, _: object) -> str:
        return self.info.epoch

    async def beat(self, role: Role | None = None) -> None:
        self.info = replace(self.info, role=role or self.info.role)
        beat = Heartbeat(self.info, ExecutorCounters(), False, 0, 0, 0, 0, 48)
        await self.bus.publish(subjects.heartbeat(self.info.executor_id), beat)

    async def tell(self, *held: str, step: int = 0) -> None:
        """It waits, and decodes these."""
        states = [Request(each, Kind.OFFLINE, 12, 40, num_computed_tokens=11, num_blocks=1) for each in held]
        own = (self.info.executor_id, self.info.epoch, step, PlanSource.IDLE, True, [], states, [], 48 - len(held))
        await self.bus.publish(subjects.step(self.info.executor_id), StepStarted(*own))

    async def take(self, request_id: str, giver: Peer) -> None:
        giver_place, taker_place = (Place(each.info.executor_id, each.info.epoch) for each in (giver, self))
        taken = Taken(request_id, GATEWAY, giver_place, taker_place)
        await self.bus.publish(subjects.taken(self.info.executor_id), taken)

    async def plan_with(self, request_id: str) -> None:
        """Wait for one that brings this request; it is told again and again that it does not run."""
        async with asyncio.timeout(60):
            while True:
                await self.beat()
                await self.tell()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        while request_id not in [each.request_id for each in (await self.plans.get()).admitted]:
                            pass
                        return


@pytest.fixture
async def offline_queue(bus: Bus) -> AsyncIterator[None]:
    settings = OfflineQueueSettings("", strategy=STRATEGY)
    learnt_by = LearntBy("fcfs", MODEL.name, "tokenizer", 16)
    service = OfflineQueueService(bus, settings, MODEL, FcfsOrder(), TOKENIZER, SystemClock(), learnt_by)
    running = asyncio.create_task(service.run())
    async with asyncio.timeout(60):
        while service.name != "offline-queue":  # noqa: ASYNC110 (it says so nowhere else)
            await asyncio.sleep(0.01)
    yield
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await service.stop()


async def submit(bus: Bus, request_id: str) -> None:
    generate = GenerateRequest(request_id, Kind.OFFLINE, list(range(10)), SamplingParams(30), 0.0, GATEWAY)
    assert not (await ask(bus, FlexSubmit(generate, "client"))).refusal


async def ask(bus: Bus, message: FlexMessage) -> FlexAnswer:
    return await bus.request(WORK.flex, message, FlexAnswer)


async def pair(bus: Bus) -> tuple[Peer, Peer]:
    """A relaxed executor and a strict one."""
    relaxed = await Peer.registered(bus, "executor-0", Role.RELAXED)
    strict = await Peer.registered(bus, "executor-1", Role.STRICT)
    await strict.beat()
    return relaxed, strict


@pytest.mark.usefixtures("offline_queue")
async def test_what_moves_is_its_takers_until_that_is_gone(bus: Bus) -> None:
    relaxed, strict = await pair(bus)
    request_id = "flex-client.one-1"
    await submit(bus, request_id)
    await relaxed.plan_with(request_id)
    await relaxed.tell(request_id)
    await strict.take(request_id, relaxed)
    await strict.tell(request_id)
    await relaxed.tell(request_id)  # it goes on, as if nobody had taken it
    assert await asyncio.wait_for(relaxed.aborts.get(), 10) == AbortRequests([request_id])
    assert strict.aborts.empty()
    await strict.take("flex-client.unknown-1", relaxed)  # which its gateway has to know
    await ask(bus, FlexHeld(GATEWAY, []))
    assert await asyncio.wait_for(strict.aborts.get(), 10) == AbortRequests([request_id])

    await submit(bus, "flex-client.two-1")
    await relaxed.plan_with("flex-client.two-1")
    await strict.take("flex-client.two-1", relaxed)
    await strict.tell("flex-client.two-1")
    await (await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)).delete("executor-1")
    await relaxed.plan_with("flex-client.two-1")


@pytest.mark.usefixtures("offline_queue")
async def test_a_role_is_heeded_as_soon_as_a_heartbeat_has_it(bus: Bus) -> None:
    _, strict = await pair(bus)
    await submit(bus, "flex-client.one-1")
    for _ in range(3):
        await strict.beat()
        await strict.tell()
    await ask(bus, FlexHeld(GATEWAY, ["flex-client.one-1"]))
    assert strict.plans.empty()
    await strict.beat(Role.MIXED)
    await strict.plan_with("flex-client.one-1")
