"""Latency models and budgets as they are published, and the policies that follow from them."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from shared.bus import Bucket, Bus
from shared.latency.boosted import Sum
from shared.latency.linear import LinearLatencyModel
from shared.protocol import subjects
from shared.protocol.executors import EngineSpec, ExecutorInfo
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource
from shared.protocol.profiling.latency_models import (
    BoostedCurves,
    CurveRecord,
    LatencyModelRecord,
    LinearCoefficients,
    ModelRecord,
)
from shared.scheduling.placement.role import Role
from shared.scheduling.policy import Policy
from shared.scheduling.strategy import BLIND_IDLE_BUDGET_MS, Strategy
from shared.watch.tuning import NO_LATENCY_KNOWN, Tuning

SPEC = EngineSpec("m", "sim", "cpu", "float16", 256, 49152, 16, 64, (2,))
INFO = ExecutorInfo("executor-0", "epoch", 1, "key", SPEC, 8, 512)


async def test_the_policy_follows_what_is_published(bus: Bus) -> None:
    changed = asyncio.Event()
    tuning = Tuning(bus, changed.set)
    following = asyncio.create_task(tuning.run())
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)

    async def becomes(budget: BudgetRecord | None, policy: Policy) -> None:
        if budget is not None:
            await budgets.put("key", budget)
        async with asyncio.timeout(60):
            while tuning.policy(INFO) != policy:
                changed.clear()
                await changed.wait()

    nothing = Policy(0.0, offline_enabled=False)
    assert tuning.policy(INFO) == nothing
    assert tuning.policy(INFO) is tuning.policy(INFO)  # made once, until there is news
    assert tuning.policy(replace(INFO, strategy=Strategy.of("sarathi++"))) == Policy(math.inf)
    await budgets.put("key", BudgetRecord("key", 40.0, BudgetSource.SLO, 80.0))
    await models.put("key", LatencyModelRecord("key", LinearCoefficients((1.0,) * 8), 100, 0.01, 0.0))
    await becomes(None, Policy(40.0, idle_budget_ms=80.0))
    await becomes(BudgetRecord("key", 0.0, BudgetSource.SLO, 0.0), Policy(0.0))
    await becomes(BudgetRecord("key", 20.0, BudgetSource.PROFILING, 30.0), Policy(20.0, idle_budget_ms=30.0))
    await becomes(BudgetRecord("key", 0.0, BudgetSource.PROFILING, 0.0), nothing)
    tolerance = BudgetRecord("key", 0.0, BudgetSource.TOLERANCE, tolerance=0.05)
    await becomes(tolerance, Policy(0.0, idle_budget_ms=BLIND_IDLE_BUDGET_MS, tolerance=0.05))
    stoppable = replace(INFO, spec=replace(SPEC, is_interruptible=True))
    assert tuning.policy(stoppable) == Policy(0.0, idle_budget_ms=math.inf, tolerance=0.05)
    acting = tuning.policy(stoppable, Role.STRICT)
    assert acting == Policy(0.0, idle_budget_ms=math.inf, tolerance=0.05, role=Role.STRICT)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


class Followed:
    """A tuning that follows the bus, and who publishes there."""

    def __init__(self, bus: Bus, models: Bucket[LatencyModelRecord], budgets: Bucket[BudgetRecord]) -> None:
        self.tuning = Tuning(bus, self.note)
        self.num_changes = 0
        self._models = models
        self._budgets = budgets
        self._changed = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus) -> AsyncIterator["Followed"]:
        models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        followed = cls(bus, models, await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord))
        following = asyncio.create_task(followed.tuning.run())
        yield followed
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    def note(self) -> None:
        self.num_changes += 1
        self._changed.set()

    async def publish(self, profile_key: str, told: BudgetRecord | ModelRecord | None) -> None:
        """None withdraws the budget. Until it is heard of."""
        await self.send(profile_key, told)
        await asyncio.wait_for(self._changed.wait(), 60)
        self._changed.clear()

    async def send(self, profile_key: str, told: BudgetRecord | ModelRecord | None) -> None:
        if told is None:
            await self._budgets.delete(profile_key)
        elif isinstance(told, BudgetRecord):
            await self._budgets.put(profile_key, told)
        else:
            await self._models.put(profile_key, LatencyModelRecord(profile_key, told, 100, 0.01, 0.0))

    async def forget_model(self, profile_key: str) -> None:
        await self._models.delete(profile_key)


def linear(ms: float) -> LinearCoefficients:
    return LinearCoefficients((ms, *([1.0] * 7)))


async def test_a_budget_holds_once_there_is_a_model_to_hold_it_with(bus: Bus) -> None:
    """Of its own kind of executors; what was asked before news of either is not told again."""
    async with Followed.running(bus) as followed:
        tuning = followed.tuning
        assert tuning.model("key") is NO_LATENCY_KNOWN and not tuning.knows_model("key")
        await followed.publish("other", linear(3.0))
        await followed.publish("key", BudgetRecord("key", 40.0, BudgetSource.SLO, 80.0))
        assert tuning.budget_ms("key") is None and tuning.policy(INFO) == Policy(0.0, offline_enabled=False)
        assert tuning.budget_ms("other") is None and tuning.knows_model("other")
        await followed.publish("key", linear(7.0))
        assert tuning.budget_ms("key") == 40.0 and tuning.policy(INFO) == Policy(40.0, idle_budget_ms=80.0)
        assert tuning.model("key") == LinearLatencyModel(7.0, *[1.0] * 7) != tuning.model("other")
        await followed.publish("key", BudgetRecord("key", 50.0, BudgetSource.SLO, 80.0))
        assert tuning.policy(INFO) == Policy(50.0, idle_budget_ms=80.0)
        await followed.publish("key", None)
        assert tuning.budget_ms("key") is None and tuning.policy(INFO) == Policy(0.0, offline_enabled=False)


async def test_deadlines_are_kept_with_a_model_and_not_before(bus: Bus) -> None:
    """By a strategy that goes by no budget."""
    info = replace(INFO, strategy=Strategy.of("bros"))
    async with Followed.running(bus) as followed:
        assert not followed.tuning.policy(info).offline_enabled
        await followed.publish("key", linear(7.0))
        assert followed.tuning.policy(info).offline_enabled


async def test_a_budget_that_was_never_there_may_be_withdrawn(bus: Bus) -> None:
    async with Followed.running(bus) as followed:
        await followed.publish("key", None)
        await followed.publish("key", linear(7.0))
        await followed.publish("key", BudgetRecord("key", 40.0, BudgetSource.SLO, 80.0))
        assert followed.tuning.budget_ms("key") == 40.0


async def test_a_model_that_is_gone_is_the_one_to_go_by(bus: Bus) -> None:
    """No executor runs without one because its record was swept away."""
    async with Followed.running(bus) as followed:
        await followed.publish("key", linear(7.0))
        await followed.forget_model("key")
        await followed.publish("other", linear(8.0))
        assert followed.num_changes == 2 and followed.tuning.model("key") == LinearLatencyModel(7.0, *[1.0] * 7)


async def test_a_model_that_is_none_is_said_and_the_one_before_it_stays(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    async with Followed.running(bus) as followed:
        await followed.publish("key", linear(7.0))
        await followed.send("key", BoostedCurves(1.0, [CurveRecord(Sum.TOKENS, (5,), (1.0,))]))
        await followed.publish("other", linear(8.0))
        assert followed.num_changes == 2 and followed.tuning.model("key") == LinearLatencyModel(7.0, *[1.0] * 7)
        (ignored,) = [vars(each) for each in caplog.records if each.message == "ignored a latency model"]
        assert ignored["profile_key"] == "key" and "its first knot is 0" in ignored["why"]
        await followed.publish("key", linear(9.0))
        assert followed.tuning.model("key") == LinearLatencyModel(9.0, *[1.0] * 7)
