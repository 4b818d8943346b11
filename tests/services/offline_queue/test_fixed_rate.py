"""Offline requests that enter at a fixed rate."""

import asyncio
from typing import Any

import pytest

from services.offline_queue.attached import AttachedExecutors
from services.offline_queue.planning import Planning
from services.offline_queue.plans_due import PlansDue


class CountedPlans(PlansDue):
    def __init__(self) -> None:
        super().__init__(AttachedExecutors())
        self.num_times = 0

    def on_work(self) -> None:
        super().on_work()
        self.num_times += 1


@pytest.mark.parametrize("period_s", [0.0, 1e-9])
async def test_a_rate_beyond_what_can_be_planned_leaves_time_for_all_else(period_s: float) -> None:
    due = CountedPlans()
    others: Any = None
    planning = Planning(others, "offline-queue", due._attached, due, others, others, others)
    releasing = asyncio.create_task(planning.release(period_s))
    for _ in range(2000):
        await asyncio.sleep(0)
    releasing.cancel()
    assert due.num_times < 500
