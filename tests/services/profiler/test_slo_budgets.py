"""SLO budgets on a real bus: what gateways and executors tell comes in, records and budgets go out."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from services.profiler.settings import ProfilerSettings
from services.profiler.slo.budgets import SloBudgets
from shared.bus import Bus
from shared.clock import SystemClock
from shared.errors import NotFoundOnBusError
from shared.latency.histogram import LatencyHistogram
from shared.protocol import subjects
from shared.protocol.executors import ExecutorCounters, Heartbeat
from shared.protocol.offline.requests import OfflineLength, OfflineSample
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource, SloReport, SloState
from shared.protocol.profiling.latency_models import LatencyModelRecord, LinearCoefficients
from shared.protocol.profiling.online import FinishedOnline, OnlineLatencies, OnlineServed
from shared.protocol.profiling.slo_profile import (
    Knob,
    ProfileReply,
    ProfileRequest,
    SloProfileRecord,
    SloVerdict,
    WorkloadFacts,
    slo_profile_key,
)
from shared.scheduling.strategy import Strategy
from tests.services.profiler.profiling import KEY, executor_info, until
from tests.services.profiler.test_slo_keeper import model

SLO = "tbt_mean<=30ms"
INFO = executor_info()
WORK = subjects.of_model(INFO.spec.model)
NUM_REQUESTS = 20  # in so many seconds: a search at a low priority waits for all tests that run beside it
ARRIVE_S = 4.0
SEARCHED_S = 180.0  # by then a search is over, on a busy machine as well


class Stack:
    """What runs around the budgets, as far as they hear of it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._clock = SystemClock()
        self._steps_offline = 0

    async def publish_model(self) -> None:
        models = await self._bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        await models.put(KEY, model().record)

    async def serve(self, tbt_ms: float = 20.0) -> None:
        """A minute of requests, up to now."""
        rng, now_s, tbt = random.Random(5), self._clock.unix_s(), LatencyHistogram()
        finished = [FinishedOnline(now_s + rng.uniform(0.0, ARRIVE_S), 100, 10) for _ in range(NUM_REQUESTS)]
        for _ in range(200):
            tbt.add(tbt_ms)
        latencies = OnlineLatencies(tbt_ms=tbt)
        served = OnlineServed(INFO.executor_id, "g", now_s, now_s + ARRIVE_S, len(finished), finished, latencies)
        await self._bus.publish(subjects.online(INFO.executor_id), served)

    async def beat(self) -> None:
        """With one more step that had offline work in it."""
        self._steps_offline += 1
        counters = ExecutorCounters(steps_offline=self._steps_offline)
        beat = Heartbeat(INFO, counters, False, 1, 1, 1, 1, 10)
        await self._bus.publish(subjects.heartbeat(INFO.executor_id), beat)

    async def offline_queue(self, *lengths: OfflineLength) -> None:
        async def answer(_: object) -> OfflineSample:
            return OfflineSample(list(lengths))

        await self._bus.serve(WORK.sample, object, answer)

    async def budget(self) -> BudgetRecord | None:
        budgets = await self._bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
        try:
            return (await budgets.get(KEY)).value
        except NotFoundOnBusError:
            return None

    async def has_budget(self, source: str) -> bool:
        budget = await self.budget()
        return budget is not None and budget.source == source

    async def record(self, *slos: str) -> SloProfileRecord:
        profiles = await self._bus.bucket(subjects.SLO_PROFILES_BUCKET, SloProfileRecord)
        record = (await profiles.get(slo_profile_key(KEY, slos, Knob.BUDGET_MS))).value
        assert record is not None
        return record

    async def status(self) -> SloReport:
        return await self._bus.request(subjects.SLO_STATUS, {}, SloReport)

    async def profile(self, *slos: str, key: str = "") -> ProfileReply:
        return await self._bus.request(subjects.PROFILE, ProfileRequest(key, list(slos)), ProfileReply, 60.0)


@pytest.fixture
def stack(bus: Bus) -> Stack:
    return Stack(bus)


Start = Callable[[str], "asyncio.Future[SloBudgets]"]


@pytest.fixture
async def start(bus: Bus) -> AsyncIterator[Start]:
    """Starts budgets for SLOs, with the executor admitted."""
    running: list[tuple[SloBudgets, asyncio.Task[None]]] = []

    async def make(slos: str) -> SloBudgets:
        settings = ProfilerSettings(
            slo=slos, slo_min_requests=NUM_REQUESTS - 5, slo_min_s=ARRIVE_S / 2, slo_check_s=1.0
        )
        budgets = SloBudgets(bus, settings, SystemClock())
        await budgets.start()
        running.append((budgets, asyncio.create_task(budgets.run())))
        await budgets.admit(INFO)
        await bus.flush()
        return budgets

    yield lambda slos: asyncio.ensure_future(make(slos))
    for budgets, task in running:
        assert not task.done(), task
        task.cancel()
        await asyncio.wait([task])
        await budgets.stop()


async def test_a_workload_and_a_model_give_a_profile_and_a_budget(stack: Stack, start: Start) -> None:
    await stack.offline_queue(OfflineLength(300, 20))
    budgets = await start(SLO)
    assert await stack.budget() == BudgetRecord(KEY, 30.0, "slo-start")
    assert budgets.details() == {"slos": SLO, "slo_states": f"{KEY}: waiting for a latency model"}
    await stack.publish_model()
    await until(lambda: "recording" in str(budgets.details()["slo_states"]))
    await stack.serve()
    await until(lambda: stack.has_budget("slo"), timeout_s=SEARCHED_S)
    record, budget = await stack.record(SLO), await stack.budget()
    assert budget is not None and record.value is not None
    assert budget.latency_budget_ms == round(record.value, 3)
    assert (record.why, record.workload.offline, record.runs_on) == ("first", "backlog", "simulator")
    (status,) = (await stack.status()).executors
    assert (status.state, status.profiled_ms) == (SloState.PROFILED, record.value)
    assert status.measured[0].value_ms == pytest.approx(20.0)


async def test_what_users_get_corrects_the_budget_while_offline_work_runs(stack: Stack, start: Start) -> None:
    await start(SLO)
    await until(lambda: _breach(stack), timeout_s=30.0)
    budget = await stack.budget()
    assert budget is not None and budget.latency_budget_ms == pytest.approx(30.0 * 30 / 60)


async def _breach(stack: Stack) -> bool:
    await stack.beat()
    await stack.serve(tbt_ms=60.0)
    return await stack.has_budget("feedback")


async def test_an_unreachable_slo_lets_nothing_in(stack: Stack, start: Start) -> None:
    await stack.publish_model()
    await start("tbt_mean<=2ms")
    await stack.serve()
    await until(lambda: stack.has_budget("slo"), timeout_s=SEARCHED_S)
    assert await stack.budget() == BudgetRecord(KEY, 0.0, "slo")
    (status,) = (await stack.status()).executors
    assert status.state is SloState.UNREACHABLE and "tbt_mean<=2ms (at best" in status.note


@pytest.mark.slow
async def test_an_earlier_profile_is_used_at_once_after_a_restart(stack: Stack, start: Start) -> None:
    await stack.publish_model()
    await start(SLO)
    await stack.serve()
    await until(lambda: stack.has_budget("slo"), timeout_s=SEARCHED_S)
    value = (await stack.record(SLO)).value
    await start("tbt_mean <= 30 ms")
    assert value is not None
    assert await stack.budget() == BudgetRecord(KEY, round(value, 3), "slo")


@pytest.mark.slow
async def test_a_live_search_has_the_budget_to_itself_and_its_record_is_taken_over(
    bus: Bus, stack: Stack, start: Start
) -> None:
    await stack.publish_model()
    await start(SLO)
    await stack.serve()
    await until(lambda: stack.has_budget("slo"), timeout_s=SEARCHED_S)
    budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    await budgets.put(KEY, BudgetRecord(KEY, 77.0, BudgetSource.PROFILING))
    record = msgspec.structs.replace(await stack.record(SLO), value=25.0, runs_on="live")
    seen: list[BudgetRecord | None] = []

    async def is_watched_for_some_ticks() -> bool:
        await stack.beat()
        await stack.serve(tbt_ms=300.0)  # what would be corrected at once
        seen.append(await stack.budget())
        return len(seen) == 500

    await until(is_watched_for_some_ticks, timeout_s=30.0)
    assert all(budget == BudgetRecord(KEY, 77.0, BudgetSource.PROFILING) for budget in seen[-100:])
    profiles = await bus.bucket(subjects.SLO_PROFILES_BUCKET, SloProfileRecord)
    await profiles.put(slo_profile_key(KEY, [SLO], Knob.BUDGET_MS), record)
    await budgets.put(KEY, BudgetRecord(KEY, 25.0, "slo"))

    async def is_taken_over() -> bool:
        budget = await stack.budget()
        is_published = budget is not None and budget.source in ("slo", "feedback") and budget.latency_budget_ms <= 25.0
        return is_published and (await stack.status()).executors[0].profiled_ms == 25.0

    await until(is_taken_over)


async def test_a_live_search_that_began_before_there_was_a_budget_leaves_its_place_to_one(
    bus: Bus, stack: Stack, start: Start
) -> None:
    """Where it finds nothing it puts back that there was none."""
    budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    kept = await start(SLO)
    await budgets.put(KEY, BudgetRecord(KEY, 77.0, BudgetSource.PROFILING))
    await until(lambda: kept._published[KEY].source == BudgetSource.PROFILING)
    await budgets.delete(KEY)
    await until(lambda: stack.has_budget("slo-start"))


async def test_a_published_model_that_is_none_ends_nothing(
    bus: Bus, stack: Stack, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """As with whoever else follows models."""
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    await models.put(KEY, msgspec.structs.replace(model().record, model=LinearCoefficients((-1.0,) * 8)))
    await start(SLO)
    await until(lambda: "ignored a latency model" in caplog.text)
    profiles = await bus.bucket(subjects.SLO_PROFILES_BUCKET, SloProfileRecord)
    verdict, facts = SloVerdict(SLO, 30.0, 20.0, True), WorkloadFacts("recorded", 10, 10.0, 100.0, 10.0)
    record = SloProfileRecord(KEY, [SLO], Knob.BUDGET_MS, 25.0, True, [verdict], [], facts, "live", 1.0)
    await profiles.put(slo_profile_key(KEY, [SLO], Knob.BUDGET_MS), record)
    await until(lambda: stack.has_budget("slo"))


@pytest.mark.slow
async def test_a_fixed_budget_that_gives_way_to_slos_is_told_at_the_start(
    stack: Stack, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    budgets = await start(SLO)
    assert "gives way" not in caplog.text
    await budgets.admit(msgspec.structs.replace(INFO, strategy=Strategy.of("hygen", budget_ms=12.5)))
    assert "budget_ms 12.5 of its executors gives way to the SLOs" in caplog.text


async def test_who_asks_gets_a_search_of_any_slos_or_why_there_is_none(stack: Stack, start: Start) -> None:
    await start("")
    assert "the stack keeps no SLOs" in (await stack.profile()).error
    assert "is not understood" in (await stack.profile("fast")).error
    assert f"known: {KEY}" in (await stack.profile(SLO, key="other")).error
    assert "no latency model, or no online requests" in (await stack.profile(SLO)).error
    await stack.publish_model()
    await stack.serve()
    replies: list[ProfileReply] = []

    async def is_found() -> bool:
        replies.append(await stack.profile(SLO))
        return replies[-1].error == ""

    await until(is_found, timeout_s=SEARCHED_S)  # model and workload come on other subjects
    reply = replies[-1]
    assert [record.why for record in reply.records] == ["asked"]
    assert reply.records[0] == await stack.record(SLO)
    assert await stack.budget() is None and await stack.status() == SloReport([], [])


async def test_each_model_has_slos_of_its_own(bus: Bus, stack: Stack) -> None:
    others = json.dumps([{"name": INFO.spec.model, "slo": SLO}, {"name": "none"}])
    settings = ProfilerSettings(slo="tbt_mean<=50ms", other_models=others)
    budgets = SloBudgets(bus, settings, SystemClock())
    await budgets.start()
    kinds = {"first": "first.key", INFO.spec.model: KEY, "none": "none.key"}
    for model_name, key in kinds.items():
        spec = msgspec.structs.replace(INFO.spec, model=model_name)
        await budgets.admit(msgspec.structs.replace(INFO, executor_id=f"e-{model_name}", profile_key=key, spec=spec))
    await bus.flush()
    bucket = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    held = {entry.key: entry.value.latency_budget_ms for entry in await bucket.entries() if entry.value is not None}
    assert held == {"first.key": 50.0, KEY: 30.0}
    report = await stack.status()
    assert report.slos == ["tbt_mean<=50ms", SLO]
    assert {status.profile_key: status.slos for status in report.executors} == {
        "first.key": ["tbt_mean<=50ms"],
        KEY: [SLO],
    }
    await budgets.stop()
