"""Latency models and budgets as they are published, and the policies that follow from them."""

import asyncio
import math

from msgspec.structs import replace

from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.executors import EngineSpec, ExecutorInfo
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource
from shared.protocol.profiling.latency_models import LatencyModelRecord, LinearCoefficients
from shared.scheduling.placement.role import Role
from shared.scheduling.policy import Policy
from shared.scheduling.strategy import BLIND_IDLE_BUDGET_MS, Strategy
from shared.watch.tuning import Tuning

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
