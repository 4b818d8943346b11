"""``slackwater profile --live``: a search by replays on a running stack, whose budget it sets."""

import asyncio
import random
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from services.profiler.slo.holds import MAX_MISSED, RENEW_S
from shared.bus import Bucket, Bus
from shared.bus.permissions import BusRole
from shared.protocol import subjects
from shared.protocol.profiling.budgets import BudgetRecord
from shared.protocol.profiling.slo_profile import SloProfileRecord
from tests.integration.conftest import SLACKWATER, LocalStack
from tests.programs import run_slackwater
from tests.services.gateway.gateway_rig import GatewayRig, wait_until

DURATION_S = 4


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A few chats a second beside summaries without end."""
    rng, folder = random.Random(4), tmp_path_factory.mktemp("workload")
    trace, lengths = folder / "trace.csv", folder / "lengths.csv"
    times = sorted(rng.uniform(0, DURATION_S) for _ in range(16))
    rows = [f"{time_s},m,{rng.randint(50, 300)},{rng.randint(5, 30)},0,Log" for time_s in [0.0, *times]]
    trace.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "\n".join(rows) + "\n")
    lengths.write_text("num_prefill_tokens,num_decode_tokens\n" + "400,20\n" * 1500)
    return ("--live", "--online", str(trace), "--offline", str(lengths), "--duration", str(DURATION_S))


T = TypeVar("T")
Searches = Callable[[str], subprocess.Popen[str]]


def with_budgets(stack: LocalStack, use: Callable[[Bucket[BudgetRecord]], Awaitable[T]]) -> T:
    """On the stack's bus."""

    async def run() -> T:
        bus = await Bus.connect(stack.bus(BusRole.PROFILER), "test")
        try:
            return await use(await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord))
        finally:
            await bus.close()

    return asyncio.run(run())


def budget_of(stack: LocalStack) -> BudgetRecord:
    """The stack's only one."""

    async def read(budgets: Bucket[BudgetRecord]) -> BudgetRecord:
        (entry,) = await budgets.entries()
        assert entry.value is not None
        return entry.value

    return with_budgets(stack, read)


@pytest.fixture
def start_search(sim_stack: LocalStack, workload: tuple[str, ...]) -> Iterator[Searches]:
    """Searches that have come to the run of this name."""
    started: list[subprocess.Popen[str]] = []

    def start(until: str) -> subprocess.Popen[str]:
        options = ("--slo", "tbt_mean<=1.05x", "--progress", "--data-dir", str(sim_stack.data_dir))
        command = [*SLACKWATER, "profile", *workload, *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stderr is not None
        assert any(line.startswith(until) for line in process.stderr)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_where_nothing_can_be_kept_offline_work_runs_alone(sim_stack: LocalStack, workload: tuple[str, ...]) -> None:
    """Its steps are bounded as before."""
    sim_stack.wait_healthy()
    first = budget_of(sim_stack)
    before = replace(first, idle_budget_ms=80.0)
    with_budgets(sim_stack, lambda budgets: budgets.put(before.profile_key, before))
    done = sim_stack.run("profile", *workload, "--slo", "ttft_p99<=0.1ms")
    assert done.returncode == 3, done.stderr
    assert "cannot be kept even without offline work: ttft_p99<=0.1ms (at best " in done.stdout
    budget = budget_of(sim_stack)
    assert budget == BudgetRecord(before.profile_key, 0.0, "slo", 80.0, before=before)
    shown = sim_stack.run("profile", "--json", "-")
    record = msgspec.json.decode(shown.stdout, type=SloProfileRecord)
    assert shown.returncode == 3 and not record.reachable and record.runs_on == "live"
    assert sim_stack.run("profile", "--undo").returncode == 0
    assert budget_of(sim_stack) == before
    with_budgets(sim_stack, lambda budgets: budgets.put(first.profile_key, first))  # for those after it


@pytest.mark.slow
@pytest.mark.timed
def test_a_live_search_sets_the_budget_that_it_found(sim_stack: LocalStack, workload: tuple[str, ...]) -> None:
    sim_stack.wait_healthy()
    before = budget_of(sim_stack)
    done = sim_stack.run("profile", *workload, "--slo", "tbt_mean<=1.7x", "--precision", "0.4", "--json", "-")
    assert done.returncode == 0, done.stderr
    record = msgspec.json.decode(done.stdout, type=SloProfileRecord)
    assert record.value is not None and record.reachable and record.model_revision > 0
    found = next(trial for trial in record.trials if trial.value == record.value)
    assert found.met and found.offline_tokens_per_s > 0
    assert record.value == max(trial.value for trial in record.trials if trial.met)
    assert budget_of(sim_stack) == BudgetRecord(
        record.profile_key, record.value, "slo", before=before.without_live_searches
    )
    assert msgspec.json.decode(sim_stack.run("profile", "--json", "-").stdout, type=SloProfileRecord) == record


@pytest.mark.slow
def test_an_interrupted_search_puts_the_budget_back(sim_stack: LocalStack, start_search: Searches) -> None:
    sim_stack.wait_healthy()
    before = budget_of(sim_stack)
    process = start_search("run 2")
    assert budget_of(sim_stack).source == "profiling"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "so far" in out
    assert budget_of(sim_stack) == before


@pytest.mark.slow
def test_what_a_killed_search_held_is_put_back(sim_stack: LocalStack, start_search: Searches) -> None:
    """By the profiler, since the search cannot."""
    sim_stack.wait_healthy()
    before = budget_of(sim_stack)
    process = start_search("run 2")
    process.kill()
    process.communicate()
    assert budget_of(sim_stack).source == "profiling"
    wait_until(lambda: budget_of(sim_stack) == before, "the budget stays held", RENEW_S * (MAX_MISSED + 3))


@pytest.mark.slow
def test_a_budget_that_another_sets_meanwhile_is_left_to_it(sim_stack: LocalStack, start_search: Searches) -> None:
    sim_stack.wait_healthy()
    process = start_search("run 1")
    other = BudgetRecord(budget_of(sim_stack).profile_key, 33.0, "fixed")
    with_budgets(sim_stack, lambda budgets: budgets.put(other.profile_key, other))
    _, said = process.communicate(timeout=90)
    assert process.returncode == 2
    assert "the stack's budget was changed while a run measured under 0 ms; it is 33 ms (fixed)" in said
    assert budget_of(sim_stack) == other


@pytest.mark.slow
def test_a_stack_without_a_budget_is_refused(tmp_path: Path, workload: tuple[str, ...]) -> None:
    preset = ("--preset", "sarathi++")
    with GatewayRig(tmp_path) as rig:
        rig.start_offline_queue(*preset)
        rig.start_executor("executor-0", *preset)
        rig.start_gateway()
        rig.wait_ready()
        where = ("--nats", rig.nats_url, "--url", rig.url)
        done = run_slackwater("profile", *workload, "--slo", "tbt_mean<=1.7x", *where)
    assert done.returncode == 1
    assert "the stack runs preset sarathi++, which has no latency budget" in done.stderr
