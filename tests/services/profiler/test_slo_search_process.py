"""The search's own process."""

import asyncio
import os
import resource
import sys

import msgspec
import psutil
import pytest

from services.profiler.slo.job import SearchError, SloJob, search_aside
from shared.protocol.offline.requests import OfflineLength
from shared.protocol.profiling.slo_profile import Trial
from shared.scheduling.strategy import Strategy
from tests.programs import no_more_files
from tests.services.profiler.profiling import executor_info, until
from tests.services.profiler.test_slo_keeper import model


def job(num_requests: int, preset: str = "hygen") -> SloJob:
    return SloJob(
        info=executor_info(strategy=Strategy.of(preset)),
        model=model().record,
        model_revision=1,
        slos=["tbt_mean<=30ms"],
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
    record = await search_aside(job(12))
    ticking.cancel()
    assert record.value is not None and record.workload.requests == 12
    assert ticks > 10


async def test_it_ends_with_the_process_that_asked_for_it() -> None:
    """However that ends."""
    program = (
        "import asyncio; from services.profiler.slo.job import search_aside; "
        "from tests.services.profiler.test_slo_search_process import job; asyncio.run(search_aside(job(20_000)))"
    )
    asking = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    await until(lambda: bool(psutil.Process(asking.pid).children()), timeout_s=60.0)
    (search,) = psutil.Process(asking.pid).children()
    asking.kill()
    await asking.wait()
    await until(lambda: not search.is_running() or search.status() == psutil.STATUS_ZOMBIE)


def pressed(**changes: object) -> SloJob:
    """So few KV blocks that online requests often take those of offline ones."""
    fields = {"num_blocks": 120, "strategy": Strategy(kv_sharing="bidirectional"), "num_host_slots": 120 * 16} | changes
    info = executor_info(**fields)
    offline = [OfflineLength(300, 200)]
    return msgspec.structs.replace(job(60), info=info, offline=offline, slos=["tbt_mean<=2s"])


def beside_offline_work(job: SloJob) -> Trial:
    return max(job.run().trials, key=lambda trial: trial.value)


def test_it_simulates_the_kv_policy_of_the_executor() -> None:
    sharing, lru = beside_offline_work(pressed()), beside_offline_work(pressed(strategy=Strategy()))
    assert sharing.offline_tokens_per_s > lru.offline_tokens_per_s, "nothing paused is computed again"
    no_host = beside_offline_work(pressed(num_host_slots=0))
    assert sharing.offline_tokens_per_s > no_host.offline_tokens_per_s, "what is overwritten comes back from the host"
    slow_copies = beside_offline_work(pressed(swap_ms_per_slot=5.0))
    assert slow_copies.verdicts[0].value_ms > 2 * sharing.verdicts[0].value_ms, "steps wait for copies not hidden"


async def test_cancelling_ends_the_process() -> None:
    others = set(psutil.Process().children())  # multiprocessing's resource tracker may stand from a test before
    searching = asyncio.create_task(search_aside(job(20_000)))
    await until(lambda: bool(set(psutil.Process().children()) - others))
    (child,) = set(psutil.Process().children()) - others
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    assert not child.is_running()


async def test_a_search_that_cannot_be_says_why() -> None:
    with pytest.raises(SearchError, match="preset online-only has neither"):
        await search_aside(job(10, preset="online-only"))
    one_token_each = msgspec.structs.replace(job(2), requests=[(0.0, 100, 1), (0.5, 100, 1)])
    with pytest.raises(SearchError, match="no figure for tbt_mean<=30ms: an answer of one token"):
        await search_aside(one_token_each)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux bounds the files of another process")
async def test_a_search_for_which_no_process_can_be_started_says_why() -> None:
    with no_more_files(os.getpid()), pytest.raises(SearchError, match="Too many open files"):
        await search_aside(job(10))
