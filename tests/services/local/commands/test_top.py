"""``slackwater top``: what is added up, and what is drawn of a stack's messages on a real bus."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from services.local.cli import app
from services.local.commands.status.top import frame, show_essentials
from services.local.commands.status.top_table import duration, essentials, screen
from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.clock import SystemClock
from shared.latency.histogram import LatencyHistogram
from shared.protocol import subjects
from shared.protocol.executors import ExecutorCounters, ExecutorInfo, Heartbeat
from shared.protocol.offline.batches import WITHDRAWN, BatchRecord, RequestCounts
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource, SloState, SloStatus
from shared.protocol.profiling.online import OnlineLatencies, OnlineServed
from shared.protocol.profiling.slo_profile import SloVerdict
from shared.protocol.services import ServiceStatus
from shared.watch.follower import StackFollower
from shared.watch.stack_status import ProcessStatus, StackReport, Status
from shared.watch.stack_watch import GONE_S, MAX_ENDED, StackWatch, ended_at
from shared.watch.windows import RateWindow
from tests.services.profiler.profiling import KEY, executor_info, until

COUNTERS = ExecutorCounters(100, busy_s=10.0, online_tokens=1000, offline_tokens=5000, online_s=8.0, online_alone_s=8.0)
LATER = ExecutorCounters(120, busy_s=11.0, online_tokens=1100, offline_tokens=7000, online_s=9.0, online_alone_s=8.8)
COUNTS = RequestCounts(1000, 100)
BATCH = BatchRecord("batch_1", "/v1/completions", "file_1", "24h", 100, 200, "in_progress", request_counts=COUNTS)


def beat(counters: ExecutorCounters, *step_ms: float, **info: object) -> Heartbeat:
    steps = LatencyHistogram()
    for latency_ms in step_ms:
        steps.add(latency_ms)
    return Heartbeat(executor_info(**info), counters, False, 1, 2, 3, 4, 500, step_ms=steps)  # type: ignore[arg-type]


def served(**milliseconds: float) -> OnlineServed:
    latencies = OnlineLatencies()
    for name, latency_ms in milliseconds.items():
        getattr(latencies, name).add(latency_ms)
    return OnlineServed("executor-0", "g", 0.0, None, 1, [], latencies)


def drawn(watch: StackWatch, now_s: float, unwell: Sequence[str] = (), width: int = 170, **told: Any) -> str:
    console = Console(width=width, no_color=True)
    fields: dict[str, Any] = {"queues": {}, "slos": []} | told
    status = Status(None, None, None, None, processes=[], executors=[], budgets=[], **fields)
    with console.capture() as capture:
        console.print(screen("http://here", unwell, StackReport(status, watch.view(now_s))))
    return capture.get()


def test_a_rate_is_that_of_the_last_seconds() -> None:
    window = RateWindow(10.0)
    assert window.per_s() is None
    window.add(0.0, 0.0)
    assert window.per_s() is None
    for second in range(1, 31):
        window.add(float(second), 100.0 + second if second > 15 else 0.0)
    assert window.per_s() == pytest.approx(1.0)
    window.add(31.0, 5.0)  # begun anew
    assert window.per_s() is None
    window.add(33.0, 9.0)
    assert window.per_s() == pytest.approx(2.0)


def test_executors_are_shown_with_their_rates_and_step_times() -> None:
    watch = StackWatch()
    watch.on_heartbeat(1.0, beat(COUNTERS, 10.0))
    watch.on_budget(KEY, BudgetRecord(KEY, 25.0, BudgetSource.SLO))
    assert not watch.has_beaten(["executor-0"], 2)
    watch.on_heartbeat(3.0, beat(LATER, 20.0, 30.0))
    assert watch.has_beaten(["executor-0"], 2) and not watch.has_beaten(["executor-0", "executor-1"], 2)
    (executor,) = watch.view(3.0).executors
    assert (executor.steps_per_s, executor.busy_share) == (10.0, 0.5)
    assert (executor.online_tokens_per_s, executor.offline_tokens_per_s) == (50.0, 1000.0)
    assert executor.step_ms.mean_ms() == pytest.approx(20.0) and executor.budget_ms == 25.0
    row = next(line.split() for line in drawn(watch, 3.0).splitlines() if "executor-0" in line)
    assert row[:6] == ["executor-0", "torch", "2", "1", "4", "3"]
    assert row[6] == "20.0" and row[8:] == ["25.0", "1.25", "10.0", "50%", "50", "1,000", "75%"]
    watch.on_budget(KEY, None)
    assert watch.view(20.0 - GONE_S).executors == []


def test_the_budget_is_that_of_what_the_executor_holds() -> None:
    watch = StackWatch()
    watch.on_budget(KEY, BudgetRecord(KEY, 25.0, BudgetSource.SLO, idle_budget_ms=400.0))
    watch.on_heartbeat(1.0, beat(COUNTERS))
    assert watch.view(1.0).executors[0].budget_ms == 25.0
    watch.on_heartbeat(2.0, msgspec.structs.replace(beat(COUNTERS), online_waiting=0, online_running=0))
    assert watch.view(2.0).executors[0].budget_ms == 400.0


def test_a_new_incarnation_begins_anew() -> None:
    watch = StackWatch()
    watch.on_heartbeat(1.0, beat(LATER))
    watch.on_heartbeat(2.0, beat(LATER, 10.0))
    watch.on_heartbeat(3.0, beat(ExecutorCounters(), epoch="epoch-2"))
    (executor,) = watch.view(3.0).executors
    assert executor.steps_per_s is None and executor.step_ms.num_samples == 0
    row = next(line.split() for line in drawn(watch, 3.0).splitlines() if "executor-0" in line)
    assert row[6:13] == ["-"] * 7


def test_latencies_stand_beside_what_was_promised_of_them() -> None:
    watch = StackWatch()
    watch.on_served(1.0, served(ttft_ms=200.0, tbt_ms=40.0))
    watch.on_served(30.0, served(tbt_ms=60.0))
    verdicts = [SloVerdict("tbt_mean<=45ms", 45.0, 50.0, False), SloVerdict("ttft_p99<=1s", 1000.0, 200.0, True)]
    slos = [SloStatus(KEY, SloState.PROFILED, 20.0, BudgetSource.SLO, verdicts)]
    rows = [" ".join(line.split()) for line in drawn(watch, 31.0, slos=slos).splitlines()]
    assert any(row.startswith("TTFT 1 200.0 ") and row.endswith("ttft_p99<=1s kept") for row in rows)
    assert any(row.startswith("TBT 2 50.0 ") and row.endswith("tbt_mean<=45ms BROKEN") for row in rows)
    assert "TPOT 0 - - -" in rows
    assert watch.view(61.0).online.tbt_ms.num_samples == 1


@pytest.mark.parametrize("expr", ["itl_p99<=45ms", "online.tbt_ms.p99<=45ms", "TBT_p99 < 45 ms"])
def test_what_was_promised_is_shown_however_it_is_spelled(expr: str) -> None:
    verdicts = [SloVerdict(expr, 45.0, 50.0, False), SloVerdict("of another version", 1.0, 1.0, True)]
    shown = drawn(StackWatch(), 0.0, slos=[SloStatus(KEY, SloState.PROFILED, 20.0, BudgetSource.SLO, verdicts)])
    assert f"{expr} BROKEN" in next(line for line in shown.splitlines() if line.split()[:1] == ["TBT"])
    assert "of another version" not in shown


def test_batches_are_shown_until_they_end() -> None:
    watch = StackWatch()
    watch.on_batch(0.0, "batch_1", BATCH)
    assert watch.view(0.0).batches[0].left_s is None
    watch.on_batch(10.0, "batch_1", msgspec.structs.replace(BATCH, request_counts=RequestCounts(1000, 190, 10)))
    new = {"id": "batch_0", "created_at": 300, "status": "validating", "request_counts": RequestCounts()}
    watch.on_batch(10.0, "batch_0", msgspec.structs.replace(BATCH, **new))
    (older, newer) = watch.view(10.0).batches
    assert (older.record.id, older.done, older.left_s) == ("batch_1", 200, pytest.approx(80.0))
    assert (newer.record.id, newer.left_s) == ("batch_0", None)
    rows = [line.split() for line in drawn(watch, 10.0).splitlines()]
    assert next(row for row in rows if row and row[0] == "batch_1")[-6:] == ["200", "of", "1,000", "20%", "10", "1:20"]
    watch.on_batch(11.0, "batch_1", msgspec.structs.replace(BATCH, status="completed", completed_at=150))
    watch.on_batch(11.0, "batch_0", None)
    assert watch.view(11.0).batches == [] and [each.id for each in watch.view(11.0).ended] == ["batch_1"]


def test_the_batches_that_ended_last_are_remembered_and_no_more() -> None:
    watch = StackWatch()
    watch.on_batch(0.0, "batch_1", BATCH)
    assert watch.lines_left() == 900
    for index, at in enumerate((40, 10, 60, 30, 20, 50)):
        ended = msgspec.structs.replace(BATCH, id=f"batch_{index}", status="cancelled", cancelled_at=at)
        watch.on_batch(0.0, ended.id, ended)
    assert watch.lines_left() == 0
    assert [ended_at(record) for record in watch.view(0.0).ended] == [60, 50, 30, 20, 10]
    watch.on_batch(0.0, "batch_2", None)
    assert len(watch.view(0.0).ended) == MAX_ENDED - 1


def test_an_executor_that_is_silent_is_forgotten() -> None:
    watch = StackWatch()
    watch.on_heartbeat(1.0, beat(COUNTERS, 10.0))
    watch.on_heartbeat(2.0, beat(LATER, 10.0))
    assert watch.view(2.0 + GONE_S).executors == []
    watch.on_heartbeat(9.0, beat(LATER))
    assert not watch.has_beaten(["executor-0"], 2)


def test_what_is_not_well_and_the_queue_are_told() -> None:
    queues = {"pool_waiting": 7, "pool_compute_density": 1.2671, "online_waiting": 1}
    text = drawn(StackWatch(), 0.0, unwell=["predictor: no answer"], queues=queues)
    assert "predictor: no answer" in text
    assert "pool waiting 7, pool compute density 1.27" in text and "online waiting" not in text
    assert "neither offline-queue nor gateway answers" in drawn(StackWatch(), 0.0)


def test_a_frame_fits_eighty_columns_with_every_figure() -> None:
    watch = StackWatch()
    watch.on_heartbeat(1.0, beat(COUNTERS, 10.0, 30.0))
    watch.on_heartbeat(2.0, beat(LATER, 10.0, 30.0))
    watch.on_served(2.0, served(ttft_ms=200.0, tbt_ms=40.0, e2e_ms=900.0))
    watch.on_batch(2.0, "batch_1", msgspec.structs.replace(BATCH, id="batch_0123456789abcdef01234567"))
    narrow, wide = (drawn(watch, 2.0, queues={"pool_waiting": 7}, width=width) for width in (80, 10_000))
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines()))
    assert "…" not in narrow and set(wide.split()) <= set(narrow.split())
    assert sum("offline tok/s" in line for line in wide.splitlines()) == 1


def test_the_essentials_fit_a_line() -> None:
    watch = StackWatch()
    assert essentials(watch.view(0.0)).startswith("online 0 running, 0 waiting | offline 0 running")
    watch.on_heartbeat(1.0, beat(COUNTERS))
    watch.on_heartbeat(2.0, beat(LATER))
    watch.on_served(2.0, served(ttft_ms=200.0, tbt_ms=40.0))
    watch.on_batch(2.0, "batch_1", BATCH)
    line = essentials(watch.view(2.0))
    assert line.startswith(
        "online 2 running, 1 waiting | offline 4 running, 3 waiting | 2,000 offline tokens/s | TTFT p99"
    )
    assert line.endswith(" | TBT p99 40 ms | batches 100 of 1,000 lines")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0:00"), (65.0, "1:05"), (3599.6, "1:00:00"), (7384.0, "2:03:04")]
)
def test_durations_are_written_as_clocks_do(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_a_budget_that_is_no_number_of_milliseconds_is_not_shown_as_one() -> None:
    watch = StackWatch()
    watch.on_budget(KEY, BudgetRecord(KEY, 0.0, BudgetSource.TOLERANCE, tolerance=0.05))
    watch.on_heartbeat(1.0, beat(COUNTERS))
    assert watch.view(1.0).executors[0].budget_ms is None
    watch.on_heartbeat(2.0, msgspec.structs.replace(beat(COUNTERS), online_waiting=0, online_running=0))
    assert watch.view(2.0).executors[0].budget_ms is None


async def publish_stack(bus: Bus, counters: ExecutorCounters) -> None:
    await bus.publish(subjects.heartbeat("executor-0"), beat(counters))
    await bus.publish(subjects.online("executor-0"), served(ttft_ms=100.0))
    await bus.flush()


async def test_a_stack_is_followed_on_its_bus(bus: Bus) -> None:
    batches = await bus.bucket(subjects.BATCHES_BUCKET, BatchRecord)
    await batches.put("batch_1", BATCH)
    await (await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)).put("executor-0", executor_info())
    watch, clock = StackWatch(), SystemClock()
    async with StackFollower.following(bus, watch, clock) as follower:
        waiting = asyncio.create_task(follower.wait_for_beats(2))
        await publish_stack(bus, COUNTERS)
        await until(lambda: bool(watch.view(clock.monotonic_s()).executors))
        assert not waiting.done()
        await publish_stack(bus, LATER)
        await waiting
        assert watch.has_beaten(["executor-0"], 2)
        await until(lambda: watch.view(clock.monotonic_s()).online.ttft_ms.num_samples == 2)
        await until(lambda: bool(watch.view(clock.monotonic_s()).batches))
        budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
        await budgets.put(KEY, BudgetRecord(KEY, 25.0, BudgetSource.SLO))
        await until(lambda: watch.view(clock.monotonic_s()).executors[0].budget_ms == 25.0)
        withdrawn = msgspec.structs.replace(BATCH, id="batch_2", status="cancelled", claim=WITHDRAWN)
        await batches.put("batch_2", withdrawn)
        await batches.put("batch_1", msgspec.structs.replace(BATCH, status="completed"))
        await until(lambda: not watch.view(clock.monotonic_s()).batches)
        assert [record.id for record in watch.view(clock.monotonic_s()).ended] == ["batch_1"]


async def test_one_frame_is_printed(bus: Bus, nats_url: str) -> None:
    async def pong(_: dict[str, object]) -> ServiceStatus:
        return ServiceStatus("offline-queue", 1, "ok", {"waiting": 12, "preset": "hygen"})

    answering = await bus.serve(subjects.PING, dict, pong)
    await (await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)).put("executor-0", executor_info())
    await bus.flush()
    runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"})
    drawing = asyncio.create_task(asyncio.to_thread(runner.invoke, app, ["top", "--once", "--nats", nats_url]))
    for steps in range(1_000_000):
        await publish_stack(bus, ExecutorCounters(steps=steps))
        if (await asyncio.wait((drawing,), timeout=0.05))[0]:
            break
    await answering.stop()
    result = drawing.result()
    assert result.exit_code == 0, result.output
    assert "executor-0" in result.stdout and "KV used" in result.stdout
    assert "pool waiting 12" in result.stdout
    assert re.search(r"^ last \d s +samples", result.stdout, re.MULTILINE), "what came before it did not hear"


@pytest.mark.parametrize(("heard_s", "shown"), [(2.6, "last 3 s"), (59.0, "last 59 s"), (60.0, "last minute")])
def test_latencies_are_of_the_time_in_which_somebody_listened(heard_s: float, shown: str) -> None:
    console = Console(width=170, no_color=True)
    status = Status(None, None, None, None, processes=[], executors=[], budgets=[], slos=[], queues={})
    with console.capture() as capture:
        console.print(frame(StackReport(status, StackWatch().view(1.0)), heard_s))
    assert f" {shown} " in capture.get()


def test_one_that_stands_by_is_no_fault_and_one_that_is_unwell_is() -> None:
    told = (("offline-queue-standby", "waits: pid 12 on host-a is at work"), ("executor-0", "a step takes long"))
    processes = [ProcessStatus(name, 7, health, None, {}) for name, health in told]
    status = Status(None, None, None, None, processes=processes, executors=[], budgets=[], slos=[], queues={})
    console = Console(width=170, no_color=True)
    with console.capture() as capture:
        console.print(frame(StackReport(status, StackWatch().view(1.0))))
    shown = capture.get()
    assert "executor-0: a step takes long" in shown and "waits" not in shown


class RecordingProgress:
    redraws = True

    def __init__(self) -> None:
        self.details: list[str] = []

    def step(self, text: str, detail: str = "") -> None:
        self.details.append(detail)

    def note(self, text: str) -> None:
        raise AssertionError(text)

    def close(self) -> None: ...


async def test_the_line_below_up_follows_the_stack(bus: Bus, nats_url: str) -> None:
    progress = RecordingProgress()
    showing = asyncio.create_task(show_essentials(BusAddress(nats_url), progress))
    try:
        await until(lambda: bool(progress.details))
        await publish_stack(bus, COUNTERS)
        await until(lambda: progress.details[-1].startswith("online 2 running, 1 waiting"))
    finally:
        showing.cancel()
        await asyncio.wait((showing,))


def test_without_a_stack_there_is_nothing_to_watch(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["top", "--data-dir", str(tmp_path)])
    assert result.exit_code == 1 and "no stack runs in" in result.stderr
