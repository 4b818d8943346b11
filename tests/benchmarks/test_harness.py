"""What all benchmarks share: tables, turns, and what processes take."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures.trace_lab import TraceOptions
from benchmarks.harness.command import Table, quantile, quantiles, show
from benchmarks.harness.stack import usage_of
from benchmarks.harness.tries import MAX_TRIES, tried
from benchmarks.harness.turns import in_turns
from benchmarks.harness.whole_batch import run_batch
from benchmarks.simulator.slo_search import SLOS
from loadgen.client.openai_client import OpenAIClient
from loadgen.errors import ServerError
from tests.loadgen.openai_server import OpenAIServer

ROOT = Path(__file__).parents[2]


def test_a_table_has_a_row_for_each() -> None:
    table = Table("Some.", [{"n": "1", "twice": "2"}, {"n": "2", "twice": "4"}])
    assert table.markdown() == "Some.\n\n| n | twice |\n| --- | --- |\n| 1 | 2 |\n| 2 | 4 |"


def test_rows_with_the_same_headings_are_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    show(["About.", {"n": "1"}, {"n": "2"}, {"m": "3"}, "Done."])
    tables = "| n |\n| --- |\n| 1 |\n| 2 |\n\n| m |\n| --- |\n| 3 |"
    assert capsys.readouterr().out == f"About.\n\n{tables}\n\nDone.\n"


def test_a_benchmark_is_the_program_of_its_module(options: TraceOptions) -> None:
    """With a short backlog: the one that is drawn is as long as that of the figures."""
    command = [sys.executable, "-m", "benchmarks.simulator.slo_search", "--offline", str(options.offline)]
    command += ["--duration", "2", "--qps", "1"]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    assert shown[0] == "| preset | SLO | largest | offline tokens/s | new runs | CPU s |"
    assert len(shown) == 2 + 2 * len(SLOS)


def test_what_a_benchmark_cannot_use_is_said_in_one_line() -> None:
    command = [sys.executable, "-m", "benchmarks.simulator.slo_search", "--offline", "nowhere.csv"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (2, "error: nowhere.csv: No such file or directory\n")


def test_quantiles_are_those_of_ranks() -> None:
    values = [1.0, 2.0, 3.0, 4000.0]
    assert quantiles(values, {"least": 0.0, "p50": 0.5, "max": 1.0}, digits=1) == {
        "least": "1.0",
        "p50": "2.0",
        "max": "4,000.0",
    }


@given(st.lists(st.integers(0, 20), min_size=1), st.sampled_from([0.0, 0.07, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0]))
def test_a_quantile_is_the_nearest_rank_s(values: list[int], q: float) -> None:
    """The least value that so many percent are not above."""
    ordered, percent = sorted(values), round(100 * q)
    reached = [value for value in ordered if 100 * sum(each <= value for each in ordered) >= percent * len(ordered)]
    assert quantile(ordered, q) == reached[0]


def test_each_has_as_many_turns_and_is_first_as_often() -> None:
    ran: list[str] = []
    times = in_turns([lambda: ran.append("a"), lambda: ran.append("b")], turns=4, warm_up=2)
    assert ran == ["a", "b", "b", "a"] * 3
    assert [len(each.clock_ms) for each in times] == [len(each.cpu_ms) for each in times] == [4, 4]


def test_usage_is_that_of_the_process() -> None:
    process = psutil.Process(os.getpid())
    with usage_of({"this": process}) as usage:
        sum(range(2_000_000))
    assert usage.seconds > 0 and 0 < usage.cpu_s["this"] <= usage.seconds + 1
    assert usage.most_mib["this"] >= usage.before_mib["this"] > 0


async def test_what_is_cut_is_measured_again_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    failures = iter(["refused", "cut"])

    async def make() -> int:
        if why := next(failures, None):
            raise ConnectionError(why)
        return 7

    assert await tried(make, "some") == 7
    assert capsys.readouterr().err == "some: try 1 is made again: refused\nsome: try 2 is made again: cut\n"
    failures = iter(["again"] * MAX_TRIES)
    with pytest.raises(ConnectionError, match="again"):
        await tried(make, "some")


def batch_file(folder: Path, num_lines: int) -> Path:
    bodies = ({"prompt": f"line {number}", "max_tokens": 2} for number in range(num_lines))
    lines = [
        {"custom_id": f"{n}", "method": "POST", "url": "/v1/completions", "body": body} for n, body in enumerate(bodies)
    ]
    (file := folder / "batch.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(lines))
    return file


async def test_a_line_of_a_batch_that_fails_is_told_and_more_than_may_fail_end_it(
    server: OpenAIServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refused_prompts = ("line 3",)
    file = batch_file(tmp_path, 10)
    async with OpenAIClient(server.url, 60.0) as client:
        batch = await run_batch(client, file, "/v1/completions", max_failed_share=0.1)
        assert batch["request_counts"]["completed"] == 9
        why = "is completed: of 10 lines 1 failed, the first of them: 400: 0 tokens too many"
        assert why in capsys.readouterr().err
        with pytest.raises(ServerError, match=why):
            await run_batch(client, file, "/v1/completions")
