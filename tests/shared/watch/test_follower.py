"""What is said on a bus, as it reaches a watch."""

import asyncio

import pytest
from msgspec.structs import replace

from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.offline.batches import WITHDRAWN, BatchRecord
from shared.protocol.profiling.budgets import BudgetRecord
from shared.protocol.profiling.online import OnlineLatencies, OnlineServed
from shared.watch import follower
from shared.watch.follower import FIRST_S, StackFollower
from shared.watch.stack_watch import StackWatch
from tests.shared.bus.servers import until
from tests.shared.replica.test_readers import ManualClock
from tests.shared.watch.test_stack_watch import BUDGET, INFO, batch, beat, samples, sees_all
from tests.simulation.nats import MemoryServer
from tests.simulation.nats.test_faults import in_virtual_time


async def say_beat(bus: Bus, executor_id: str = "executor-0", steps: int = 0) -> None:
    await bus.publish(subjects.heartbeat(executor_id), beat(replace(INFO, executor_id=executor_id), steps=steps))


async def register(bus: Bus, *executor_ids: str) -> None:
    bucket = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    for executor_id in executor_ids:
        await bucket.put(executor_id, replace(INFO, executor_id=executor_id))


async def test_what_is_said_is_told_with_the_time_at_which_it_comes(bus: Bus) -> None:
    watch, clock = StackWatch(), ManualClock()
    async with StackFollower.following(bus, watch, clock):
        for num_beats, now_s, steps in ((1, 100.0, 10), (2, 104.0, 50)):
            clock.now_s = now_s
            await say_beat(bus, steps=steps)
            await until(lambda: watch.has_beaten(["executor-0"], num_beats))  # noqa: B023 (over within the turn)
        served = OnlineServed("executor-0", "gateway", latencies=OnlineLatencies(samples(300.0)))
        await bus.publish(subjects.online("executor-0"), served)
        await until(lambda: not watch.recent(104.0).is_empty)
    assert watch.executors(104.0)[0].steps_per_s == 10.0
    assert not watch.recent(113.9).is_empty and watch.recent(114.0).is_empty


async def test_records_are_told_as_they_are_and_as_they_change(bus: Bus) -> None:
    budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    batches = await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)
    await budgets.put("key", BUDGET)
    await batches.put("a", batch("a", done=10))
    watch, clock = StackWatch(), ManualClock()

    def shown() -> list[tuple[str, int]]:
        return [(each.record.id, each.done) for each in watch.batches(clock.now_s, sees_all)]

    async with StackFollower.following(bus, watch, clock):
        await until(lambda: watch.view(0.0).budgets == {"key": BUDGET} and shown() == [("a", 10)])
        await budgets.delete("key")
        await until(lambda: not watch.view(0.0).budgets)
        clock.now_s = 10.0
        await batches.put("a", batch("a", done=30))
        await batches.put("b", batch("b"))
        await until(lambda: shown() == [("a", 30), ("b", 0)])
        assert watch.batches(clock.now_s, sees_all)[0].lines_per_s == 2.0
        await batches.put("b", replace(batch("b", "failed"), claim=WITHDRAWN))
        await until(lambda: shown() == [("a", 30)])
        await batches.put("c", batch("c", "completed"))
        await until(lambda: [each.id for each in watch.ended(sees_all)] == ["c"])
        await batches.delete("a")
        await until(lambda: not shown())
    assert [each.id for each in watch.ended(sees_all)] == ["c"], "clients see neither of the others"


async def test_whoever_has_left_is_told_nothing_more(bus: Bus) -> None:
    left, watch, clock = StackWatch(), StackWatch(), ManualClock()
    async with StackFollower.following(bus, left, clock):
        pass
    async with StackFollower.following(bus, watch, clock):
        await say_beat(bus)
        await (await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)).put("key", BUDGET)
        await until(lambda: watch.has_beaten(["executor-0"], 1) and bool(watch.view(0.0).budgets))
    assert not left.executors(0.0) and not left.view(0.0).budgets


async def test_beats_of_each_registered_executor_are_waited_for(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "FIRST_S", 600.0)
    await register(bus, "a", "b")
    watch = StackWatch()
    async with StackFollower.following(bus, watch, ManualClock()) as following:
        await following.wait_for_beats(0)
        waiting = asyncio.create_task(following.wait_for_beats(2))
        for executor_id, num_beats in (("a", 1), ("c", 1), ("b", 1), ("a", 2)):
            await say_beat(bus, executor_id)
            await until(lambda: watch.has_beaten([executor_id], num_beats))  # noqa: B023 (over within the turn)
            assert not waiting.done(), (executor_id, num_beats)
        await say_beat(bus, "b")
        await asyncio.wait_for(waiting, 60)
    assert watch.has_beaten(["a", "b"], 2)


@in_virtual_time
async def test_one_that_does_not_beat_is_waited_for_as_long_as_it_should_take(
    server: MemoryServer, one: Bus, two: Bus
) -> None:
    now_s = asyncio.get_running_loop().time
    watch = StackWatch()
    await register(two, "a", "silent")
    async with StackFollower.following(one, watch, ManualClock()) as following:
        begun_s = now_s()
        waiting = asyncio.create_task(following.wait_for_beats(1))
        await say_beat(two, "a")
        await waiting
        assert now_s() - begun_s == pytest.approx(FIRST_S, abs=0.1)
    assert watch.has_beaten(["a"], 1) and not watch.has_beaten(["silent"], 1)
