"""What all benchmarks share: tables, turns, and what processes take."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures.trace_lab import TraceOptions
from benchmarks.harness.command import Table, quantile, quantiles, show
from benchmarks.harness.stack import usage_of
from benchmarks.harness.turns import in_turns
from benchmarks.simulator.slo_search import SLOS

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
