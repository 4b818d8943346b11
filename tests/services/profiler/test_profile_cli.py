"""``slackwater profile``: simulated searches, and what a stack's bus knows."""

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import Result
from typer.testing import CliRunner

from services.local.cli import app
from services.local.commands.profile.live import _executor
from shared.bus import Bus
from shared.protocol import subjects
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource, SloReport, SloState, SloStatus
from shared.protocol.profiling.slo_profile import (
    Knob,
    ProfileReply,
    ProfileRequest,
    SloProfileRecord,
    SloVerdict,
    Trial,
    WorkloadFacts,
    slo_profile_key,
)
from tests.services.profiler.profiling import MeasuringExecutor, executor_info

COMMAND = (sys.executable, "-c", "from services.local.cli import main; main()", "profile")
FACTS = WorkloadFacts("recorded", 100, 60.0, 800.0, 200.0)


def profile(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, ["profile", *arguments])


@pytest.fixture
def workload(tmp_path: Path) -> tuple[str, ...]:
    """Options for half a minute of chats beside summaries."""
    rng = random.Random(2)
    trace, lengths = tmp_path / "trace.csv", tmp_path / "lengths.csv"
    times = sorted(rng.uniform(0, 30) for _ in range(45))
    rows = [f"{time_s},m,{rng.randint(50, 900)},{rng.randint(5, 80)},0,Log" for time_s in times]
    trace.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "\n".join(rows) + "\n")
    lengths.write_text("num_prefill_tokens,num_decode_tokens\n" + "1200,40\n" * 300)
    return ("--online", str(trace), "--offline", str(lengths))


def test_the_evidence_and_the_answer(workload: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    slos = ("--slo", "tbt_mean<=1.3x", "--slo", "ttft_p99<=2s")
    done = profile(*workload, "--duration", "10", *slos, "--json", str(out), "--precision", "0.1", "--progress")
    assert done.exit_code == 0, done.stderr
    record = msgspec.json.decode(out.read_bytes(), type=SloProfileRecord)
    assert record.value is not None and record.slos == ["tbt_mean<=1.3x", "ttft_p99<=2s"]
    assert f"largest latency budget that keeps the SLOs: {record.value:g} ms" in done.stdout
    assert (record.knob, record.runs_on, record.profile_key) == (Knob.BUDGET_MS, "simulator", "llama2-7b-1xa100-40g")
    assert record.workload.offline_input_tokens_mean == 1200
    assert done.stdout.count("✗") == sum(not verdict.met for trial in record.trials for verdict in trial.verdicts) > 0
    assert "run 1: online only" in done.stderr
    command = [*COMMAND, *workload, "--duration", "10", *slos, "--json", "-", "--precision", "0.1"]
    again = subprocess.run(command, capture_output=True, check=True)
    assert msgspec.json.decode(again.stdout, type=SloProfileRecord).trials == record.trials


def test_an_offline_rate_for_the_baseline(workload: tuple[str, ...]) -> None:
    done = profile(*workload, "--duration", "10", "--preset", "hygen-star", "--slo", "tbt_mean<=1.3x", "--json", "-")
    assert done.exit_code == 0, done.stderr
    record = msgspec.json.decode(done.stdout, type=SloProfileRecord)
    assert record.knob is Knob.OFFLINE_QPS and record.value is not None and 0.05 <= record.value < 5


def test_what_cannot_be_kept_is_said_with_the_best(workload: tuple[str, ...]) -> None:
    done = profile(*workload, "--duration", "10", "--slo", "ttft_p99<=1ms", "--slo", "tbt_mean<=2x")
    assert done.exit_code == 3
    assert "cannot be kept even without offline work: ttft_p99<=1ms (at best " in done.stdout
    assert "NO" in done.stdout


def test_a_budget_that_is_too_small_for_any_offline_work(workload: tuple[str, ...]) -> None:
    done = profile(*workload, "--duration", "10", "--slo", "tbt_mean<=1.00001x")
    assert done.exit_code == 3
    assert (
        "no latency budget that lets offline work in kept the SLOs; without offline work they are kept" in done.stdout
    )


def test_ctrl_c_prints_what_is_known(workload: tuple[str, ...]) -> None:
    command = [*COMMAND, *workload, "--duration", "25", "--slo", "tbt_mean<=1.3x", "--precision", "0.001", "--progress"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("run 4"):
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "so far" in out and "none" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --slo"),
        (["--slo", "speed<=1"], "is not understood"),
        (["--slo", "tbt_mean<=1s", "--preset", "sarathi++"], "neither a latency budget nor an offline rate"),
        (["--slo", "tbt_mean<=1s", "--device", "tpu"], "unknown device 'tpu'"),
    ],
)
def test_bad_input_is_one_line(workload: tuple[str, ...], arguments: list[str], said: str) -> None:
    done = profile(*workload, "--duration", "10", *arguments)
    assert done.exit_code == 2
    assert said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--preset", "none"], "unknown preset 'none'; known: hygen"),
        (["--online-order", "lifo"], "unknown online order 'lifo'; known: fcfs, vtc"),
        (["--preset", "bros", "--online-order", "vtc"], "packing deadline orders online requests itself"),
    ],
)
def test_a_strategy_that_cannot_be_is_refused(workload: tuple[str, ...], arguments: list[str], said: str) -> None:
    done = profile(*workload, "--slo", "tbt_mean<=1s", *arguments)
    assert done.exit_code == 2 and said in " ".join(done.stderr.split())


def make_record(profile_key: str, profiled_at_s: float, value: float) -> SloProfileRecord:
    verdicts = [SloVerdict("tbt_mean<=50ms", 50.0, 20.0, True)]
    trials = [Trial(0.0, verdicts, True, 100, 0, 0.0, 0.0, 0.0), Trial(value, verdicts, True, 100, 0, 1.0, 900.0, 90.0)]
    slos = ["tbt_mean<=50ms"]
    return SloProfileRecord(
        profile_key, slos, Knob.BUDGET_MS, value, True, verdicts, trials, FACTS, "simulator", profiled_at_s
    )


async def test_a_stack_shows_the_newest_profile_of_each_kind(bus: Bus, nats_url: str) -> None:
    empty = await asyncio.to_thread(profile, "--nats", nats_url)
    assert empty.exit_code == 1 and "has not searched for a latency budget yet" in empty.stderr
    bucket = await bus.bucket(subjects.SLO_PROFILES_BUCKET, SloProfileRecord)
    for record, slo in (
        (make_record("llama", 1.0, 30.0), "tbt_mean<=1x"),
        (make_record("llama", 2.0, 40.0), "tbt_mean<=50ms"),
        (make_record("qwen", 1.0, 60.0), "tbt_mean<=50ms"),
    ):
        await bucket.put(slo_profile_key(record.profile_key, [slo], Knob.BUDGET_MS), record)
    done = await asyncio.to_thread(profile, "--nats", nats_url)
    assert done.exit_code == 0, done.stderr
    assert "llama, simulator: 100 requests of recorded" in done.stdout
    assert "keeps the SLOs: 40 ms (900 offline tokens/s)" in done.stdout and "60 ms" in done.stdout
    assert "30 ms" not in done.stdout


async def test_a_stack_that_still_records_says_how_far_it_is(bus: Bus, nats_url: str) -> None:
    note = "28 of 100 requests, 40 of 60 s recorded"
    recording = SloStatus("llama", SloState.RECORDING, 100.0, BudgetSource.SLO_START, [], note=note)
    waiting = SloStatus("qwen", SloState.WAITING, 100.0, BudgetSource.SLO_START, [])

    async def tell(_: object) -> SloReport:
        return SloReport(["tbt_mean<=50ms"], [recording, waiting])

    subscription = await bus.serve(subjects.SLO_STATUS, object, tell)
    done = await asyncio.to_thread(profile, "--nats", nats_url)
    await subscription.stop()
    assert done.exit_code == 1
    assert f"llama: recording the workload ({note}); qwen: waiting for a latency model; --now" in done.stderr


async def test_a_new_search_is_asked_for_over_the_bus(bus: Bus, nats_url: str) -> None:
    nobody = await asyncio.to_thread(profile, "--nats", nats_url, "--now")
    assert nobody.exit_code == 1 and "no profiler answers" in nobody.stderr
    asked = []

    async def search(request: ProfileRequest) -> ProfileReply:
        asked.append(request)
        return ProfileReply([make_record("llama", 3.0, 50.0)]) if request.slos else ProfileReply([], "no SLO is kept")

    subscription = await bus.serve(subjects.PROFILE, ProfileRequest, search)
    done = await asyncio.to_thread(profile, "--nats", nats_url, "--now", "--slo", "tbt_mean<=50ms", "--json", "-")
    refused = await asyncio.to_thread(profile, "--nats", nats_url, "--now")
    await subscription.stop()
    assert msgspec.json.decode(done.stdout, type=SloProfileRecord).value == 50.0
    assert asked == [ProfileRequest(slos=["tbt_mean<=50ms"]), ProfileRequest()]
    assert refused.exit_code == 1 and "the profiler did not search: no SLO is kept" in refused.stderr


async def test_what_a_live_search_has_set_is_taken_back(bus: Bus, nats_url: str) -> None:
    """Also where the stack had what an earlier one had found; a search that runs keeps its own."""
    budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    fixed = BudgetRecord("a", 40.0, BudgetSource.FIXED, 60.0)
    tolerance = BudgetRecord("b", 0.0, BudgetSource.TOLERANCE, tolerance=0.02)
    searching = BudgetRecord("c", 9.0, BudgetSource.PROFILING, before=BudgetRecord("c", 40.0, BudgetSource.FIXED))
    of_slos = BudgetRecord("d", 30.0, BudgetSource.SLO)
    for budget in (
        BudgetRecord("a", 25.0, BudgetSource.SLO, before=fixed),
        BudgetRecord("b", 25.0, BudgetSource.SLO, before=tolerance),
        searching,
        of_slos,
    ):
        await budgets.put(budget.profile_key, budget)
    done = await asyncio.to_thread(profile, "--nats", nats_url, "--undo")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == ["a: 40 ms again (fixed)", "b: 2% later again (tolerance)"]
    assert {entry.key: entry.value for entry in await budgets.entries()} == {
        "a": fixed,
        "b": tolerance,
        "c": searching,
        "d": of_slos,
    }
    nothing = await asyncio.to_thread(profile, "--nats", nats_url, "--undo")
    assert nothing.exit_code == 1 and "no budget that a search by --live has found" in nothing.stderr


async def test_a_live_search_passes_over_who_ended_without_a_sign_off(bus: Bus) -> None:
    """Their registrations are left for an hour, and one of another kind had it refused."""
    live = executor_info("live", profile_key="live.key", epoch="of-live")
    async with MeasuringExecutor(bus, executor_info("gone", epoch="of-gone")), MeasuringExecutor(bus, live) as executor:

        async def keep_beating() -> None:
            while True:
                await executor.beat()
                await asyncio.sleep(0.2)

        beating = asyncio.create_task(keep_beating())
        assert (await _executor(bus)).executor_id == "live"
        beating.cancel()
