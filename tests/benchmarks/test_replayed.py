"""Stacks under the same replay: ``benchmarks.scheduling.replayed``."""

import json
from pathlib import Path

import pytest
import typer

from benchmarks.scheduling.replayed import failures, main, options_of
from benchmarks.scheduling.side_by_side import Measured, report_of
from loadgen.options import WorkloadOptions
from tests.loadgen.openai_server import OpenAIServer

NUM_ONLINE, NUM_OFFLINE = 6, 400


def test_options_are_those_of_the_command() -> None:
    assert options_of("budget-ms=60 --preset=echo ttft-slo-ms=") == {
        "budget-ms": "60",
        "preset": "echo",
        "ttft-slo-ms": "",
    }
    assert options_of("") == {}


@pytest.mark.parametrize("text", ["budget-ms", "a=1 b", "=3"])
def test_what_is_no_option_is_named(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no NAME=VALUE"):
        options_of(text)


def test_both_files_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="--online TRACE --offline PROMPTS"):
        list(main(workload=WorkloadOptions(online=tmp_path / "trace.csv")))


async def test_what_failed_is_told_below_the_rows(server: OpenAIServer, trace_file: Path) -> None:
    plan = WorkloadOptions(online=trace_file).plan(0.5, None)
    whole = await report_of(plan, server.url)
    server.failing_requests = 2
    made = Measured([whole, await report_of(plan, server.url)])
    words = "2 online requests failed: 500: out of order | for now"
    assert list(failures("kv-blocks=100", made)) == [f"kv-blocks=100, turn 2: replay: {words}."]


@pytest.mark.slow
def test_each_stack_has_a_row(tmp_path: Path) -> None:
    """With an engine that simulates: of online requests alone, offline ones alone, and both."""
    trace, prompts = tmp_path / "trace.csv", tmp_path / "prompts.jsonl"
    lines = [f"2023-11-16 18:00:0{second}.0000000,80,12" for second in range(NUM_ONLINE)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    prompts.write_text("".join(json.dumps({"prompt": f"{n} and {n} are"}) + "\n" for n in range(NUM_OFFLINE)))
    workload = WorkloadOptions(online=trace, offline=prompts, offline_max_tokens=20)
    stacks = ["engine=sim", "engine=sim preset=sarathi++"]
    rows = list(main(workload=workload, stack=stacks, duration=8.0, warm_up=1.0))
    assert [row["stack"] for row in rows if isinstance(row, dict)] == stacks
    for row in rows:
        assert isinstance(row, dict)
        assert float(row["TTFT mean ms"]) > 0 and float(row["of alone: mean TBT"]) > 0.5
        assert float(row["offline output tokens/s"].replace(",", "")) > 0
        assert int(row["steps planned"].replace(",", "")) > 0
