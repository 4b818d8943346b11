"""The comparison with vLLM: its search, its rates, what it keeps of the runs, and a run of it against a real server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from benchmarks.harness.kept import all_kept
from benchmarks.harness.origin import Origin, origin_now
from benchmarks.harness.page import FigureProgress
from benchmarks.harness.tries import MAX_TRIES
from benchmarks.vllm.__main__ import app
from benchmarks.vllm.comparison import Cell, Comparison, _Lazy, mean_of
from benchmarks.vllm.result import NAME, PAGE, result_of
from benchmarks.vllm.run_store import RunStore
from benchmarks.vllm.search import KnobSearch, Point, nearest, rate_for
from benchmarks.vllm.servers import SYSTEMS, Knob, Server, Vllm, system_named
from benchmarks.vllm.workload import Setting, Workload
from loadgen.errors import ServerError, WorkloadError
from loadgen.report.report import OnlineReport, Summary
from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from tests.loadgen.openai_server import OpenAIServer

ORIGIN = Origin(command=None, date="2026-01-02", revision="0123456789ab", machine="a CPU, 2 cores", seed=None)
LADDER = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)


def searched(bound: float, first: float, max_runs: int) -> list[float]:
    """The values that are run on a server that keeps the SLOs up to a bound."""
    search, ran = KnobSearch(LADDER, first, max_runs), []
    while (value := search.next_value()) is not None:
        ran.append(value)
        search.tell(value, value <= bound)
    return ran


@given(st.floats(0, 40), st.floats(0.1, 50))
def test_a_search_without_a_limit_finds_the_largest_value(bound: float, first: float) -> None:
    ran = searched(bound, first, max_runs=100)
    kept = [value for value in ran if value <= bound]
    assert max(kept, default=None) == max((value for value in LADDER if value <= bound), default=None)
    assert len(ran) == len(set(ran)) <= 7


def test_a_search_goes_in_doubling_strides_and_then_bisects() -> None:
    assert searched(bound=12, first=2.5, max_runs=9) == [2, 3, 6, 24, 12, 16]
    assert searched(bound=1, first=32, max_runs=9) == [32, 24, 12, 3, 1, 2]
    assert searched(bound=0, first=2, max_runs=9) == [2, 1]


def test_a_search_ends_with_its_runs() -> None:
    assert searched(bound=12, first=2, max_runs=3) == [2, 3, 6]


@pytest.mark.parametrize("ladder", [(), (1.0, 1.0), (2.0, 1.0)])
def test_a_ladder_ascends(ladder: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        KnobSearch(ladder, 1.0, 4)


def test_every_system_has_a_ladder_that_holds_its_first_guess() -> None:
    for knob in (system.knob for system in SYSTEMS.values() if system.knob):
        assert KnobSearch(knob.ladder, knob.first, 4).next_value() == knob.first


def test_rates_follow_the_time_that_is_left_idle() -> None:
    assert rate_for(0.5, []) == 0.4
    half = Point(0.4, 0.5)
    assert rate_for(0.75, [half]) == 0.8  # a quarter of the time is idle at twice the rate
    assert rate_for(0.5, [half, Point(1.6, 0.9)]) == 0.4
    assert 0.4 < rate_for(0.75, [half, Point(1.6, 0.9)]) < 1.6
    assert rate_for(0.2, [Point(0.4, 1.0)]) < 0.4
    assert nearest(0.8, [half, Point(1.6, 0.9)]) == Point(1.6, 0.9)


def online(tbt_ms: float, share: float = 0.5) -> OnlineReport:
    same = Summary(tbt_ms, tbt_ms, tbt_ms, tbt_ms)
    return OnlineReport(10, 10, 0, 0, same, same, same, same, None, 1.0, 1.0, 1.0, share)


def test_the_mean_of_baselines() -> None:
    mean = mean_of([online(40.0, 0.4), online(50.0, 0.6)])
    assert mean.tbt_ms == Summary(45.0, 45.0, 45.0, 45.0)
    assert mean.under_way_share == pytest.approx(0.5) and mean.requests == 10


def test_a_run_with_failures_is_not_lost_in_a_mean() -> None:
    failing = msgspec.structs.replace(online(40.0), errors=3)
    for runs in ([failing, online(40.0)], [online(40.0), failing]):
        assert mean_of(runs).errors == 3


KNOB = Knob("offline requests at a time", (1.0, 2.0, 4.0), 2.0, 8.0)


@dataclass(frozen=True, slots=True)
class Local:
    """The test's own server as a system. ``turned``: the values that its knob had; ``starts``: how often it was
    started."""

    server: OpenAIServer
    name: str = "vllm-priority"
    knob: Knob | None = KNOB
    turned: list[float | None] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def serving(self, setting: Setting, model_path: Path, folder: Path) -> AsyncIterator[Server]:
        self.starts.append(self.name)
        yield Server(self.server.url, self.offline)

    def offline(self, value: float | None) -> Mapping[str, Any]:
        self.turned.append(value)
        return {"offline_mode": "requests", "offline_concurrency": round(value or 2), "offline_extra": {"priority": 1}}


@pytest.fixture
def setting(trace_file: Path, prompt_file: Path) -> Setting:
    slos = ["tbt_mean<=100x", "ttft_p99<=100x"]
    return Setting(
        online=str(trace_file),
        offline=str(prompt_file),
        model=DEFAULT_MODEL,
        window=0.4,
        start=0.0,
        length_scale=1.0,
        warm_up=0.1,
        offline_max_tokens=2,
        slo=slos,
    )


@pytest.fixture(scope="module")
def model_path() -> Path:
    return prepare(DEFAULT_MODEL, default_cache_dir(), print)


def comparison(
    setting: Setting, model_path: Path, store: RunStore, *systems: Local, tell: Callable[[str], None] = print
) -> tuple[Comparison, list[int]]:
    """And how many cells were done each time that a load's were."""
    done: list[int] = []
    workload = Workload(setting, model_path)
    made = Comparison(
        workload, systems, (0.5,), store, FigureProgress(), lambda: done.append(len(made.cells)), 2, 2, tell
    )
    return made, done


@pytest.mark.slow
async def test_a_comparison_runs_searches_and_is_resumed(
    setting: Setting,
    model_path: Path,
    server: OpenAIServer,
    tmp_path: Path,
) -> None:
    theirs, ours = Local(server), Local(server, "slackwater-torch", None)
    first, done = comparison(
        setting, model_path, RunStore(tmp_path / "work", setting, ORIGIN, resume=False), theirs, ours
    )
    await first.run()
    assert done == [2] and [cell.system for cell in first.cells] == ["vllm-priority", "slackwater-torch"]
    assert theirs.turned == [8.0, 2.0, 4.0]
    assert ours.turned == [None, None, None], "alone, and twice beside online work"
    for cell, combine in zip(first.cells, (max, fmean), strict=True):
        rates = [run.offline.total_tokens_per_s or 0 for run in cell.runs]
        assert cell.best is not None and cell.best.trial.met and len(rates) == 2
        assert cell.best.offline.total_tokens_per_s == pytest.approx(combine(rates))
        assert 0 < (cell.alone.under_way_share or 0) <= 1
        assert cell.alone.ttft_ms is not None and len(cell.alone_runs) == 2
    offline = [body for body in server.trace_bodies if body["max_tokens"] == 2]
    assert offline and all(body["priority"] == 1 for body in offline)

    num_bodies = len(server.bodies)
    again = Local(server), Local(server, "slackwater-torch", None)
    second, _ = comparison(setting, model_path, RunStore(tmp_path / "work", setting, ORIGIN, resume=True), *again)
    await second.run()
    assert second.cells == first.cells
    assert len(server.bodies) == num_bodies and not again[0].starts and not again[1].starts


async def test_a_run_in_which_a_request_fails_is_made_again_and_that_is_told(
    setting: Setting, model_path: Path, server: OpenAIServer, tmp_path: Path
) -> None:
    told: list[str] = []
    store, system = RunStore(tmp_path / "work", setting, ORIGIN, resume=False), Local(server, "slackwater-torch", None)
    made, _ = comparison(setting, model_path, store, system, tell=told.append)
    store.put_rate(0.5, 20.0)
    await made._offline_only(_Lazy(made, system, AsyncExitStack()))
    server.failing_requests = 1
    await made.run()
    (cell,) = made.cells
    assert cell.best is not None and [each.errors for each in cell.alone_runs] == [0, 0]
    ((name, run, attempt, words),) = map(msgspec.structs.astuple, made.failures)
    assert (name, attempt) == ("slackwater-torch", 1)
    failed = r"1 of (\d+) online requests failed: request 1 of \1, due at \d\.\d s: 500: out of order \| for now"
    assert re.fullmatch(failed, words), words
    assert told == [f"slackwater-torch: {run}: try 1 is made again: {words}"]
    table = result_of(made.cells, setting, made.failures).tables[-1]
    assert [row["what failed"] for row in table.rows] == [words.replace("|", "/")]
    kept = RunStore(tmp_path / "work", setting, ORIGIN, resume=True)
    again, _ = comparison(setting, model_path, kept, Local(server, "slackwater-torch", None))
    await again.run()
    assert again.failures == made.failures, "what was told stays"


async def test_a_run_whose_tries_all_fail_counts_as_it_is_and_one_without_an_answer_is_void(
    setting: Setting, model_path: Path, server: OpenAIServer, tmp_path: Path
) -> None:
    def fail_again(line: str) -> None:
        server.failing_requests = 1

    store, system = RunStore(tmp_path / "work", setting, ORIGIN, resume=False), Local(server)
    made, _ = comparison(setting, model_path, store, system, tell=fail_again)
    runner, plan = _Lazy(made, system, AsyncExitStack()), made.workload.online_only(20.0)
    server.failing_requests = 1
    report = await runner.run("some", plan, None)
    assert report.online is not None and (report.online.errors, report.online.completed) == (1, len(plan.requests) - 1)
    assert [each.attempt for each in made.failures] == list(range(1, MAX_TRIES + 1))
    server.fail_with = 503
    with pytest.raises(ServerError, match=r"vllm-priority: none: no online request was answered \(.*out of order"):
        await runner.run("none", plan, None)


@pytest.mark.slow
async def test_an_interrupted_comparison_keeps_whole_runs_and_goes_on(
    setting: Setting,
    model_path: Path,
    server: OpenAIServer,
    tmp_path: Path,
) -> None:
    store = RunStore(tmp_path, setting, ORIGIN, resume=False)
    interrupted, _ = comparison(setting, model_path, store, Local(server))
    running = asyncio.create_task(interrupted.run())
    await server.until(lambda: any("priority" in body for body in server.bodies))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert store.rates() and store.get("vllm-priority", "offline-only") is None
    system = Local(server)
    resumed, _ = comparison(setting, model_path, RunStore(tmp_path, setting, ORIGIN, resume=True), system)
    await resumed.run()
    assert system.turned == [8.0, 2.0, 4.0] and len(resumed.cells) == 1


def test_a_folder_with_runs_is_not_mixed_with_others(setting: Setting, tmp_path: Path) -> None:
    RunStore(tmp_path, setting, ORIGIN, resume=False).put_rate(0.5, 0.31)
    with pytest.raises(WorkloadError, match="go on with --resume"):
        RunStore(tmp_path, setting, ORIGIN, resume=False)
    with pytest.raises(WorkloadError, match=r"another setting \(.*window 0.4, not 9.0"):
        RunStore(tmp_path, replace(setting, window=9.0), ORIGIN, resume=True)
    later = msgspec.structs.replace(ORIGIN, date="2026-02-03", command="another")
    assert RunStore(tmp_path, setting, later, resume=True).rates() == {0.5: 0.31}


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({}, {"revision": "fedcba987654"}, "revision 0123456789ab, not fedcba987654"),
        ({}, {"revision": "0123456789ab-dirty"}, "revision 0123456789ab, not 0123456789ab-dirty"),
        ({}, {"machine": "another, 8 cores"}, "machine a CPU, 2 cores, not another, 8 cores"),
        ({"revision": "0123456789ab-dirty"}, {"revision": "0123456789ab-dirty"}, "revision 0123456789ab-dirty"),
        ({"revision": None}, {}, "revision unknown"),
    ],
)
def test_runs_of_other_code_or_another_machine_are_not_taken_over(
    setting: Setting, tmp_path: Path, before: dict[str, Any], now: dict[str, Any], words: str
) -> None:
    RunStore(tmp_path, setting, msgspec.structs.replace(ORIGIN, **before), resume=False)
    with pytest.raises(WorkloadError, match=rf"another origin \({words}\): use --work"):
        RunStore(tmp_path, setting, msgspec.structs.replace(ORIGIN, **now), resume=True)


def test_runs_whose_origin_is_not_known_are_not_taken_over(setting: Setting, tmp_path: Path) -> None:
    RunStore(tmp_path, setting, ORIGIN, resume=False)
    (tmp_path / "origin.json").unlink()
    with pytest.raises(WorkloadError, match="revision unknown"):
        RunStore(tmp_path, setting, ORIGIN, resume=True)


async def test_tables_and_picture(
    setting: Setting,
    model_path: Path,
    server: OpenAIServer,
    tmp_path: Path,
) -> None:
    made, _ = comparison(setting, model_path, RunStore(tmp_path / "work", setting, ORIGIN, False), Local(server))
    await made.run()
    (cell,) = made.cells
    best = cell.best
    assert best is not None
    twice = replace(
        best, trial=msgspec.structs.replace(best.trial, offline_tokens_per_s=2 * best.trial.offline_tokens_per_s)
    )
    ours = replace(cell, system="slackwater-torch", runs=[twice])
    nothing = replace(cell, system="slackwater-vllm", runs=[])
    result = result_of([cell, ours, nothing], setting)
    rows = result.tables[0].rows
    assert [row["times vLLM's best"] for row in rows] == ["1.00", "2.00", "0.00"]
    assert rows[2]["best setting"] == "none kept them" and rows[2]["offline tokens/s"] == "0"
    assert rows[1]["offline tokens/s"] == f"{twice.trial.offline_tokens_per_s:.1f}"
    assert rows[1]["of vllm-priority, online only"] == rows[0]["of vllm-priority, online only"] != ""
    idle = (1 - (cell.alone.under_way_share or 0)) * (cell.offline_alone.total_tokens_per_s or 0)
    beside = max(0.0, twice.trial.offline_tokens_per_s - idle)
    assert rows[1]["beside online work, at least"] == f"{beside:.1f}"
    smaller_steps = replace(ours, system="vllm-priority:128x16")
    both = result_of([cell, smaller_steps], setting).tables[0].rows
    assert [row["times vLLM's best"] for row in both] == ["0.50", "1.00"]
    failed = result_of([failing(cell)], setting).tables
    assert failed[0].rows[0]["best setting"] == "none kept them; online requests failed in 1 of 2 runs"
    num_requests = cell.alone.requests
    assert failed[1].rows[0]["requests"] == f"{num_requests}, 2 failed"
    assert [row["SLOs"] for row in failed[2].rows] == [f"broken: of {num_requests} online requests 3 failed", "broken"]
    PAGE.write(tmp_path, NAME, result, origin_now())
    page = (tmp_path / PAGE.file).read_text()
    assert page.count(str(origin_now().date)) == 1 and "smollm2-135m-instruct" in page
    with Image.open(tmp_path / PAGE.images / f"{NAME}.png") as picture:
        assert picture.width == 800


def failing(cell: Cell) -> Cell:
    """Two of its online requests failed alone, three in its first run, and none in its second, which was late."""
    first, second = (replace(run, trial=msgspec.structs.replace(run.trial, met=False)) for run in cell.runs)
    alone = [msgspec.structs.replace(each, errors=2) for each in cell.alone_runs]
    with_errors = replace(first, online=msgspec.structs.replace(first.online, errors=3))
    return replace(cell, alone_runs=alone, runs=[with_errors, second])


def test_vllm_may_have_steps_of_other_sizes() -> None:
    assert system_named("vllm-plain") is SYSTEMS["vllm-plain"]
    smaller = system_named("vllm-plain:128x16")
    assert isinstance(smaller, Vllm) and smaller.sizes == (128, 16)
    assert (smaller.name, smaller.policy, smaller.knob) == ("vllm-plain:128x16", "fcfs", SYSTEMS["vllm-plain"].knob)


@pytest.mark.parametrize("text", ["vllm-plain:128", "vllm-plain:0x4", "vllm-plain:1x1x1", "slackwater-torch:8x8"])
def test_steps_of_sizes_that_are_none_are_named(text: str) -> None:
    with pytest.raises(WorkloadError, match=re.escape(repr(text))):
        system_named(text)


def test_an_unknown_system_is_named(trace_file: Path, prompt_file: Path, tmp_path: Path) -> None:
    arguments = ["--online", str(trace_file), "--offline", str(prompt_file), "--work", str(tmp_path)]
    result = CliRunner().invoke(app, [*arguments, "--system", "other"])
    assert result.exit_code == 2 and "unknown system 'other'; known: vllm-priority" in result.stderr


def test_a_name_that_no_figure_can_have_is_refused(trace_file: Path, prompt_file: Path) -> None:
    result = CliRunner().invoke(app, ["--online", str(trace_file), "--offline", str(prompt_file), "--name", "a/b"])
    assert result.exit_code == 2 and "a place is PAGE/NAME" in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)  # a stack and a server, started again and again
def test_vllm_and_slackwater_side_by_side(trace_file: Path, prompt_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    arguments = ["--online", str(trace_file), "--offline", str(prompt_file), "--start", "0"]
    arguments += [
        "--system",
        "vllm-priority:64x4",
        "--system",
        "slackwater-torch",
        "--load",
        "50",
        "--length-scale",
        "1",
    ]
    arguments += ["--window", "3", "--warm-up", "1", "--max-runs", "1", "--offline-max-tokens", "8", "--no-progress"]
    arguments += ["--slo", "tbt_mean<=100x", "--work", str(tmp_path / "work"), "--out", str(tmp_path)]
    arguments += ["--name", "small-steps"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    page = (tmp_path / PAGE.file).read_text()
    assert result.stdout.strip() in page and [place.name for place in all_kept(tmp_path)] == ["small-steps"]
    rows = [line for line in page.splitlines() if line.startswith("| 50% |")]
    assert len(rows) == 6 and "vllm-priority:64x4" in page and not any("none kept them" in row for row in rows)
    assert "offline requests at a time: 2" in page and "as it comes" in page
