"""An executor that holds nothing says so once; where the offline-queue knows otherwise, it asks."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from shared.bus import Bus
from shared.offline_queue.scheduler import Scheduler
from shared.protocol import subjects
from shared.protocol.offline.flex import FlexHeld
from shared.protocol.steps import StepPlan
from shared.scheduling.kv.prefix_cache import CacheChanges
from shared.scheduling.placement.role import Role
from tests.services.offline_queue.test_moves_on_the_bus import GATEWAY, Peer, ask, offline_queue, submit
from tests.shared.bus.servers import until

__all__ = ["offline_queue"]

REQUEST = "flex-client.one-1"


class Asked:
    """A peer that says that it holds nothing when it is asked, and at no other time."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.peer: Peer
        self.num_times = 0

    async def register(self) -> None:
        await self._bus.serve(subjects.cache("executor-0"), object, self._tell)
        self.peer = await Peer.registered(self._bus, "executor-0", Role.MIXED)

    async def beat(self) -> None:
        await self.peer.beat()
        await self._bus.flush()

    async def plan(self) -> StepPlan:
        """The next that comes while it beats."""
        async with asyncio.timeout(60):
            while True:
                await self.beat()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        return await self.peer.plans.get()

    async def _tell(self, _: object) -> CacheChanges:
        self.num_times += 1
        await self.peer.tell()
        return CacheChanges(0, is_whole=True)


@pytest.fixture
async def asked(bus: Bus, offline_queue: None) -> Asked:
    asked = Asked(bus)
    await asked.register()
    return asked


async def test_an_executor_is_asked_when_it_is_first_known_of(bus: Bus, asked: Asked) -> None:
    await submit(bus, REQUEST)
    async with asyncio.timeout(60):
        plan = await asked.peer.plans.get()
    assert [each.request_id for each in plan.admitted] == [REQUEST]


async def test_a_plan_that_was_lost_comes_again(bus: Bus, asked: Asked) -> None:
    await submit(bus, REQUEST)
    for _ in range(3):
        plan = await asked.plan()
        assert [each.request_id for each in plan.admitted] == [REQUEST]


async def test_who_is_known_to_hold_nothing_is_not_asked(bus: Bus, asked: Asked) -> None:
    async with asyncio.timeout(60):
        while not asked.num_times:
            await asked.beat()
    for _ in range(20):
        await asked.beat()
    await submit(bus, REQUEST)  # answered when all that is heard
    assert asked.num_times == 1


async def test_who_was_silent_has_work_as_soon_as_it_is_heard_again(
    bus: Bus, asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await until(lambda: asked.num_times > 0)
    await ask(bus, FlexHeld(GATEWAY, []))  # answered when what it said is heard
    with monkeypatch.context() as patched:  # no longer than that, or it may be silent again before there is a plan
        patched.setattr("services.offline_queue.executor_desk.SILENCE_S", 0.1)
        await until(lambda: "executor is silent" in [record.getMessage() for record in caplog.records])
    await submit(bus, REQUEST)
    assert asked.peer.plans.empty()
    num_times = asked.num_times
    await asked.beat()
    async with asyncio.timeout(60):
        plan = await asked.peer.plans.get()
    assert [each.request_id for each in plan.admitted] == [REQUEST] and asked.num_times == num_times


async def test_of_whom_no_plan_can_be_made_is_not_asked_at_once_again(
    bus: Bus, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_plans = 0

    def plan(_: Scheduler) -> list[StepPlan]:
        nonlocal num_plans
        num_plans += 1
        raise ZeroDivisionError("a picture that makes no sense")

    await until(lambda: asked.num_times > 0)
    monkeypatch.setattr(Scheduler, "plan", plan)
    await submit(bus, REQUEST)
    await until(lambda: num_plans > 0)
    before = asked.num_times
    for _ in range(20):
        await ask(bus, FlexHeld(GATEWAY, [REQUEST]))
    assert asked.num_times == before
    await asked.beat()
    await until(lambda: asked.num_times > before)
