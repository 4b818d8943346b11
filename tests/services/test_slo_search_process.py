"""The search's own process."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from services.profiler.slo_job import SloJob
from services.profiler.slo_search import SearchError, search_aside
from shared.protocol.messages import OfflineLength
from tests.services.profiling import executor_info, until
from tests.services.test_slo_keeper import model


def job(num_requests: int, preset: str = "hygen") -> SloJob:
    return SloJob(
        info=executor_info(),
        model=model().record,
        model_revision=1,
        slos=["tbt_mean<=30ms"],
        preset=preset,
        utility_ratio=0.9,
        requests=[(0.5 * number, 100, 20) for number in range(num_requests)],
        duration_s=0.5 * num_requests,
        offline=[OfflineLength(300, 20)],
        offline_source="backlog",
        now_s=1.0,
        why="asked",
    )


async def test_the_event_loop_goes_on_while_it_searches() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    record = await search_aside(job(40))
    ticking.cancel()
    assert record.value is not None and record.workload.requests == 40
    assert ticks > 10


async def test_cancelling_ends_the_process() -> None:
    searching = asyncio.create_task(search_aside(job(20_000)))
    await until(lambda: bool(psutil.Process().children()))
    (child,) = psutil.Process().children()
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    assert not child.is_running()


async def test_a_search_that_cannot_be_says_why() -> None:
    with pytest.raises(SearchError, match="preset online-only has neither"):
        await search_aside(job(10, preset="online-only"))
