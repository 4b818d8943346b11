"""Budgets that a live search had to itself, when it is gone: over a real bus."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.profiler.slo.holds import MAX_MISSED, LiveHolds
from shared.bus import Bus
from shared.bus.buckets import Bucket
from shared.protocol import subjects
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource
from tests.services.profiler.profiling import until

BEFORE = BudgetRecord("key", 40.0, BudgetSource.SLO, 60.0)


def held(before: BudgetRecord | None, budget_ms: float = 0.0) -> BudgetRecord:
    return BudgetRecord("key", budget_ms, BudgetSource.PROFILING, before=before)


@pytest.fixture
async def budgets(bus: Bus) -> Bucket[BudgetRecord]:
    return await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)


@pytest.fixture
async def holds(bus: Bus, budgets: Bucket[BudgetRecord]) -> AsyncIterator[LiveHolds]:
    """Its periods are the tests' own."""
    made = LiveHolds(bus, budgets)
    following = asyncio.create_task(budgets.follow(made.on_budget))
    yield made
    following.cancel()
    await asyncio.wait((following,))


async def budget_of(budgets: Bucket[BudgetRecord]) -> BudgetRecord | None:
    """None where there is none."""
    return next((entry.value for entry in await budgets.entries() if entry.key == "key"), None)


@pytest.mark.parametrize("before", [BEFORE, None])
async def test_what_was_before_a_search_is_put_back_once_that_is_gone(
    budgets: Bucket[BudgetRecord], holds: LiveHolds, before: BudgetRecord | None
) -> None:
    for budget_ms in (0.0, 25.0):  # a run of it, and the next
        await budgets.put("key", held(before, budget_ms))
        await until(lambda: holds._missed.get("key") == 0)
        for _ in range(MAX_MISSED):
            await holds.end_period()
        assert await budget_of(budgets) == held(before, budget_ms)
    await holds.end_period()
    assert await budget_of(budgets) == before
    await until(lambda: not holds._missed)


async def test_a_search_that_tells_of_itself_keeps_its_budget(budgets: Bucket[BudgetRecord], holds: LiveHolds) -> None:
    revision = await budgets.put("key", held(BEFORE))
    for _ in range(3 * MAX_MISSED):
        revision = await budgets.update("key", held(BEFORE), revision)
        await until(lambda: holds._missed.get("key") == 0)
        await holds.end_period()
    assert await budget_of(budgets) == held(BEFORE)


async def test_what_another_has_set_meanwhile_stays(budgets: Bucket[BudgetRecord], holds: LiveHolds) -> None:
    await budgets.put("key", held(BEFORE))
    await until(lambda: holds._missed.get("key") == 0)
    other = BudgetRecord("key", 33.0, BudgetSource.FIXED)
    await budgets.put("key", other)
    await until(lambda: not holds._missed)
    for _ in range(2 * MAX_MISSED):
        await holds.end_period()
    assert await budget_of(budgets) == other
